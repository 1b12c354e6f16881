-- Hosts by the share of their vCPUs' time that was stolen: outside (type 1) and in the VMM (type 2), in percent.
SELECT host,
       CAST(sum(ns) AS DOUBLE) / 1e9 AS vcpu_seconds,
       100.0 * CAST(sum(CASE WHEN state = 'steal_outside' THEN ns ELSE 0 END) AS DOUBLE) / CAST(sum(ns) AS DOUBLE) AS outside_percent,
       100.0 * CAST(sum(CASE WHEN state IN ('steal_vmm', 'steal_vmm_waiting') THEN ns ELSE 0 END) AS DOUBLE) / CAST(sum(ns) AS DOUBLE) AS vmm_percent
FROM vcpu_time
WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
GROUP BY host
ORDER BY outside_percent + vmm_percent DESC, host
LIMIT 1000
