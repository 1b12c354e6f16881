-- The functions on which a VM's vCPUs spent most time, by apparent time: with what they lost meanwhile.
SELECT process, function, module, sum(ns) AS apparent_ns, sum(corrected_ns) AS corrected_ns,
       sum(CASE WHEN state IN (/* guest */ 'guest_user', 'guest_kernel', 'guest_unknown') THEN samples ELSE 0 END) AS samples
FROM vcpu_time
WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  AND function IS NOT NULL AND state NOT IN (/* idle */ 'paused', 'unknown', 'halt_polling', 'halt')
GROUP BY process, function, module
ORDER BY apparent_ns DESC, process, function, module
LIMIT 100
