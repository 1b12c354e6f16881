-- Who had the CPU while a VM's vCPUs waited for one.
SELECT thief, thief_vm, sum(ns) AS ns
FROM vcpu_time
WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  AND state = 'steal_outside'
GROUP BY thief, thief_vm
ORDER BY ns DESC, thief, thief_vm
LIMIT 100
