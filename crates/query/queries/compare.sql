-- The functions whose share of a VM's time differs most between two ranges, or between two VMs, in percent of its vCPUs' time.
WITH parts AS (
  SELECT function, module, state IN (/* guest */ 'guest_user', 'guest_kernel', 'guest_unknown') AS ran,
         CASE WHEN vm = :vm AND (:host = '' OR host = :host) AND slice >= :from AND slice < :to
              THEN ns ELSE 0 END AS ns_a,
         CASE WHEN vm = :other_vm AND (:other_host = '' OR host = :other_host)
                   AND slice >= :other_from AND slice < :other_to
              THEN ns ELSE 0 END AS ns_b
  FROM vcpu_time
  WHERE vm IN (:vm, :other_vm)
),
functions AS (
  SELECT function, module, ran,
         CAST(sum(ns_a) AS DOUBLE) AS ns_a, CAST(sum(ns_b) AS DOUBLE) AS ns_b
  FROM parts
  GROUP BY function, module, ran
),
shares AS (
  SELECT function, module, ran,
         100.0 * ns_a / nullif(sum(ns_a) OVER (), 0) AS percent_a,
         100.0 * ns_b / nullif(sum(ns_b) OVER (), 0) AS percent_b
  FROM functions
)
SELECT function, module, percent_a, percent_b
FROM shares
WHERE ran AND (0 < percent_a OR 0 < percent_b)
ORDER BY abs(coalesce(percent_a, 0) - coalesce(percent_b, 0)) DESC,
         function, module
LIMIT 200
