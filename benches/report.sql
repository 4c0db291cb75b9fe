-- What a report adds up of the rows of load sources, as far as one query can: counts by second, outcome and pod, and
-- the distributions of the response time, the service time, the send lag and the time of connecting.
-- {requests} stands for the Parquet files. scripts/proofs/report runs it in DuckDB.
WITH rows AS (
    SELECT
        *,
        coalesce(connect_start_ns, sent_ns) AS begun_ns,
        (scheduled_ns - (SELECT min(scheduled_ns) FROM read_parquet('{requests}'))) // 1000000000 AS second
    FROM read_parquet('{requests}')
)
SELECT
    second,
    phase,
    target,
    outcome,
    grpc_status,
    pod,
    count(*),
    count(conn) FILTER (WHERE NOT conn_reused),
    min(seq),
    max(end_ns),
    approx_count_distinct(local_port),
    sum(bytes_received),
    approx_quantile(end_ns - scheduled_ns, [0.5, 0.9, 0.99, 0.999]),
    approx_quantile(end_ns - begun_ns, [0.5, 0.9, 0.99, 0.999]),
    approx_quantile(begun_ns - scheduled_ns, [0.5, 0.99]),
    approx_quantile(connected_ns - connect_start_ns, [0.5, 0.99])
FROM rows
GROUP BY ALL
