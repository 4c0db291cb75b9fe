-- Aggregates the rows from load sources as a report does, as far as one query can: counts by second, outcome and pod,
-- and the distributions of response time, service time, send lag and connect time.
-- {requests} stands for the Parquet files. scripts/proofs/report runs this query in DuckDB.
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
