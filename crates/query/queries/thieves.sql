-- Who had the CPU while a VM's vCPUs waited for one, in seconds.
SELECT thief, thief_vm, CAST(sum(ns) AS DOUBLE) / 1e9 AS seconds
FROM vcpu_time
WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  AND state = 'steal_outside'
GROUP BY thief, thief_vm
ORDER BY seconds DESC, thief, thief_vm
LIMIT 100
