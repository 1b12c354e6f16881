-- CPU time to charge for, by day, VM, label and process; unattributed, idle and unknown time and gaps are lines of their own.
WITH labels AS (
  SELECT date_trunc('day', slice) AS day, host, vm, max(project) AS project, max(owner) AS owner
  FROM vms
  WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
  GROUP BY date_trunc('day', slice), host, vm
),
marked AS (
  SELECT date_trunc('day', slice) AS day, host, vm, process, thief_vm, coalesce(thief_kind, '') AS thief_kind,
         ns, corrected_ns,
         state IN (/* idle */ 'paused', 'unknown', 'halt_polling', 'halt') AS is_idle,
         state IN (/* unknown */ 'unknown') AS is_unknown,
         state IN (/* steal_outside */ 'steal_outside') AS is_outside,
         state IN (/* steal_vmm */ 'steal_vmm', 'steal_vmm_waiting') AS is_vmm,
         state IN (/* throttled */ 'throttled') AS is_throttled
  FROM vcpu_time
  WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
),
times AS (
  SELECT day, host, vm, ns, corrected_ns, is_idle, is_outside, is_vmm, is_throttled,
         CASE WHEN is_unknown THEN 'unknown' WHEN is_idle THEN 'idle'
              WHEN process IS NULL THEN 'unattributed' ELSE 'process' END AS line,
         CASE WHEN is_idle THEN NULL ELSE process END AS process,
         CASE WHEN thief_vm IS NOT NULL THEN 'vm' WHEN thief_kind = 'process' THEN 'process'
              WHEN thief_kind = 'kernel_thread' THEN 'kernel' ELSE 'unknown' END AS taker
  FROM marked
),
lines AS (
  SELECT day, host, vm, line, process,
         sum(CASE WHEN is_idle THEN 0 ELSE ns END) AS apparent_ns,
         sum(corrected_ns) AS corrected_ns,
         sum(CASE WHEN is_outside THEN ns ELSE 0 END) AS steal_outside_ns,
         sum(CASE WHEN is_vmm THEN ns ELSE 0 END) AS steal_vmm_ns,
         sum(CASE WHEN is_throttled THEN ns ELSE 0 END) AS throttled_ns,
         sum(CASE WHEN is_outside AND taker = 'vm' THEN ns ELSE 0 END) AS taken_by_vms_ns,
         sum(CASE WHEN is_outside AND taker = 'process' THEN ns ELSE 0 END) AS taken_by_processes_ns,
         sum(CASE WHEN is_outside AND taker = 'kernel' THEN ns ELSE 0 END) AS taken_by_kernel_ns,
         sum(CASE WHEN is_outside AND taker = 'unknown' THEN ns ELSE 0 END) AS taken_by_unknown_ns,
         sum(CASE WHEN is_idle THEN ns ELSE 0 END) AS not_charged_ns
  FROM times
  GROUP BY day, host, vm, line, process
),
covered AS (
  SELECT host, max(ns) AS ns
  FROM (
    SELECT host, cpu, sum(ns) AS ns
    FROM cpu_time
    WHERE (:host = '' OR host = :host) AND slice >= :from AND slice < :to
    GROUP BY host, cpu
  ) AS cpus
  GROUP BY host
),
gaps AS (
  SELECT host, CAST(1e9 * (date_part('epoch', :to) - date_part('epoch', :from)) AS BIGINT)
               - CAST(ns AS BIGINT) AS ns
  FROM covered
)
SELECT lines.day AS day, lines.host AS host, lines.vm AS vm, project, owner, line, process, apparent_ns,
       corrected_ns, steal_outside_ns, steal_vmm_ns, throttled_ns, taken_by_vms_ns, taken_by_processes_ns,
       taken_by_kernel_ns, taken_by_unknown_ns, not_charged_ns
FROM lines
LEFT JOIN labels ON lines.day = labels.day AND lines.host = labels.host AND lines.vm = labels.vm
UNION ALL
SELECT NULL, host, NULL, NULL, NULL, 'gap', NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, ns
FROM gaps
WHERE 0 < ns
ORDER BY day, host, vm, line, process
