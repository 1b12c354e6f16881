-- A function's time in a VM, slice by slice.
SELECT slice, sum(ns) AS ns, sum(samples) AS samples
FROM vcpu_time
WHERE vm = :vm AND function = :function AND (:host = '' OR host = :host)
  AND slice >= :from AND slice < :to
GROUP BY slice
ORDER BY slice
