-- VMs that took CPU time from other VMs of their host, from how many, and how much.
WITH pairs AS (
  SELECT host, thief_vm, vm, sum(ns) AS ns
  FROM vcpu_time
  WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
    AND state = 'steal_outside' AND thief_vm IS NOT NULL AND thief_vm <> vm
  GROUP BY host, thief_vm, vm
)
SELECT host, thief_vm, count(*) AS victims, sum(ns) AS ns
FROM pairs
GROUP BY host, thief_vm
ORDER BY ns DESC, host, thief_vm
LIMIT 100
