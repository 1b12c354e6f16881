-- Hosts by the share of their vCPUs' time that was stolen, outside (type 1) and in the VMM (type 2).
SELECT host, sum(ns) AS vcpu_ns,
       sum(CASE WHEN state IN (/* steal_outside */ 'steal_outside') THEN ns ELSE 0 END) AS outside_ns,
       sum(CASE WHEN state IN (/* steal_vmm */ 'steal_vmm', 'steal_vmm_waiting') THEN ns ELSE 0 END) AS vmm_ns,
       100.0 * CAST(sum(CASE WHEN state IN (/* stolen */ 'steal_vmm', 'steal_vmm_waiting', 'steal_outside')
                        THEN ns ELSE 0 END) AS DOUBLE) / CAST(sum(ns) AS DOUBLE) AS stolen_percent
FROM vcpu_time
WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
GROUP BY host
ORDER BY stolen_percent DESC, host
