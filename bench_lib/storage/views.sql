-- The tables that a query sees.  Python creates two first: ``known``, with a row for each file that
-- could be read, and ``read``, with their lines.

CREATE VIEW points AS
SELECT
    run, started::TIMESTAMP AS started, p.case_id, p.hardware_key, p.device_uuid,
    exp(p.log_median) AS median_s, p.log_median, p.spread, p.rate, p.item, p.peak_memory_bytes,
    p.status, p.environment
FROM (SELECT run, started, unnest(points) AS p FROM known);

CREATE VIEW runs AS
SELECT
    run, hardware_key, started::TIMESTAMP AS started, try_cast(ended AS TIMESTAMP) AS ended,
    exit_status, cases, counts, file, bytes
FROM known;

CREATE VIEW environments AS
SELECT
    e.ref, e.body->>'host' AS host, e.body->>'torch' AS torch, e.body->>'hip' AS hip,
    e.body->>'rocm' AS rocm, e.body->>'cuda' AS cuda, e.body->>'driver' AS driver,
    e.body->>'kernel' AS kernel, e.body->>'commit' AS "commit", e.body
FROM (SELECT DISTINCT ON (e.ref) e FROM (SELECT unnest(environments) AS e FROM known));

CREATE VIEW lines AS
SELECT
    run, started, file, body->>'kind' AS kind,
    coalesce(body->>'$.case.id', body->>'case_id') AS case_id,
    coalesce(body->>'$.attempt.hardware_key', hardware_key) AS hardware_key,
    body
FROM read JOIN runs ON parse_filename(path, false, 'forward_slash') = file
WHERE json_type(body) = 'OBJECT';

CREATE VIEW attempts AS
SELECT
    run, started, case_id, hardware_key, a.process, a.time, a.device_uuid, a.environment,
    a.accepted, a.discarded, a.invalid, a.confirms, a.fault.kind AS fault, a.skipped,
    len(m.iteration_s) AS iterations, list_median(m.iteration_s) AS median_s, m.wall_s,
    m.first_step_s, m.compile_s, m.host_bound, m.device_s, m.peak_memory_bytes, t.clock_mhz,
    t.power_w, t.temperature_c, t.utilization, params
FROM (
    SELECT
        run, started, case_id, hardware_key, line.attempt AS a, line.attempt.measurement AS m,
        line.attempt.telemetry AS t, line."case".params AS params
    FROM (
        SELECT *, from_json(body, '{
            "case": {"params": "JSON"},
            "attempt": {
                "process": "BIGINT", "time": "TIMESTAMP", "device_uuid": "VARCHAR",
                "environment": "VARCHAR", "accepted": "BOOLEAN", "discarded": "VARCHAR",
                "invalid": "BOOLEAN", "confirms": "BOOLEAN", "fault": {"kind": "VARCHAR"},
                "skipped": "VARCHAR",
                "measurement": {
                    "iteration_s": ["DOUBLE"], "wall_s": "DOUBLE", "first_step_s": "DOUBLE",
                    "compile_s": "DOUBLE", "host_bound": "BOOLEAN", "device_s": "DOUBLE",
                    "peak_memory_bytes": "BIGINT"
                },
                "telemetry": {
                    "clock_mhz": "DOUBLE", "power_w": "DOUBLE", "temperature_c": "DOUBLE",
                    "utilization": "DOUBLE"
                }
            }
        }') AS line
        FROM lines WHERE kind = 'attempt'
    )
);

CREATE VIEW verdicts AS
SELECT
    run, started, case_id, case_status, v.metric, v.status, v.ratio, v.interval[1] AS low,
    v.interval[2] AS high, v.detectable_effect, v.value, v.baseline, v.unit, v.against, v.reason
FROM (
    SELECT run, started, case_id, line.status AS case_status, unnest(line.verdicts) AS v
    FROM (
        SELECT *, from_json(body, '{
            "status": "VARCHAR",
            "verdicts": [{
                "metric": "VARCHAR", "status": "VARCHAR", "ratio": "DOUBLE",
                "interval": ["DOUBLE"], "detectable_effect": "DOUBLE", "value": "DOUBLE",
                "baseline": "DOUBLE", "unit": "VARCHAR", "against": "VARCHAR", "reason": "VARCHAR"
            }]
        }') AS line
        FROM lines WHERE kind = 'verdict'
    )
);

CREATE VIEW kernels AS
SELECT
    run, started, case_id, hardware_key, k.name, k.calls, k.total_s, profile.steps, profile.source
FROM (
    SELECT run, started, case_id, hardware_key, profile, unnest(profile.kernels) AS k
    FROM (
        SELECT *, from_json(body->'kernels', '{
            "source": "VARCHAR", "steps": "BIGINT",
            "kernels": [{"name": "VARCHAR", "calls": "DOUBLE", "total_s": "DOUBLE"}]
        }') AS profile
        FROM lines WHERE kind = 'kernels'
    )
);
