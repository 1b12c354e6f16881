-- The functions whose share of a VM's time differs most between two ranges, or between two VMs, in percent of its vCPUs' time.
WITH parts AS (
  SELECT 'a' AS part, state, function, module, ns FROM vcpu_time
  WHERE vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  UNION ALL
  SELECT 'b' AS part, state, function, module, ns FROM vcpu_time
  WHERE vm = :other_vm AND (:other_host = '' OR host = :other_host)
    AND slice >= :other_from AND slice < :other_to
),
functions AS (
  SELECT function, module,
         CAST(sum(CASE WHEN part = 'a' THEN ns ELSE 0 END) AS DOUBLE) AS ns_a,
         CAST(sum(CASE WHEN part = 'b' THEN ns ELSE 0 END) AS DOUBLE) AS ns_b
  FROM parts
  WHERE state IN ('guest_user', 'guest_kernel', 'guest_unknown')
  GROUP BY function, module
),
totals AS (
  SELECT CAST(sum(CASE WHEN part = 'a' THEN ns ELSE 0 END) AS DOUBLE) AS all_a,
         CAST(sum(CASE WHEN part = 'b' THEN ns ELSE 0 END) AS DOUBLE) AS all_b
  FROM parts
),
shares AS (
  SELECT function, module, 100.0 * ns_a / all_a AS percent_a, 100.0 * ns_b / all_b AS percent_b
  FROM functions CROSS JOIN totals
)
SELECT function, module, percent_a, percent_b
FROM shares
ORDER BY CASE WHEN percent_a < percent_b THEN percent_b - percent_a ELSE percent_a - percent_b END DESC,
         function, module
LIMIT 200
