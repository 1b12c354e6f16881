-- The functions whose share of a VM's time differs most between two ranges, or between two VMs: percent of the vCPUs' time.
SELECT function, module,
       100.0 * CAST(sum(CASE WHEN part = 'a' THEN ns ELSE 0 END) AS DOUBLE) / max(all_a) AS percent_a,
       100.0 * CAST(sum(CASE WHEN part = 'b' THEN ns ELSE 0 END) AS DOUBLE) / max(all_b) AS percent_b
FROM (
  SELECT 'a' AS part, state, function, module, ns FROM vcpu_time
  WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  UNION ALL
  SELECT 'b' AS part, state, function, module, ns FROM vcpu_time
  WHERE vm = :other_vm AND (:other_host = '' OR host = :other_host)
    AND slice >= :other_from AND slice < :other_to
) AS parts
CROSS JOIN (
  SELECT CAST(sum(ns) AS DOUBLE) AS all_a FROM vcpu_time
  WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
) AS a
CROSS JOIN (
  SELECT CAST(sum(ns) AS DOUBLE) AS all_b FROM vcpu_time
  WHERE vm = :other_vm AND (:other_host = '' OR host = :other_host)
    AND slice >= :other_from AND slice < :other_to
) AS b
WHERE state IN ('guest_user', 'guest_kernel', 'guest_unknown')
GROUP BY function, module
ORDER BY sum(CASE WHEN part = 'a' THEN 1.0 ELSE -1.0 END * CAST(ns AS DOUBLE)
             / CASE WHEN part = 'a' THEN all_a ELSE all_b END) DESC, function, module
LIMIT 200
