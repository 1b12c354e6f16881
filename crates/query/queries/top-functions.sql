-- The functions on which a VM's vCPUs spent most time.
SELECT process, function, module, sum(ns) AS ns, sum(samples) AS samples
FROM vcpu_time
WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  AND state IN ('guest_user', 'guest_kernel', 'guest_unknown')
GROUP BY process, function, module
ORDER BY ns DESC, process, function, module
LIMIT 100
