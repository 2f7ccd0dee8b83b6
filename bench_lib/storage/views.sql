-- The tables that a query sees.  Python makes three before: ``files``, those that are there;
-- ``known``, a row for each that could be read; and ``read``, the lines of those that may be opened.

CREATE VIEW points AS
SELECT
    run, started::TIMESTAMP AS started, p.case_id, p.hardware_key, p.device_uuid,
    exp(p.log_median) AS median_s, p.log_median, p.spread, p.rate, p.item, p.peak_memory_bytes,
    p.status, p.environment
FROM (SELECT run, started, unnest(points) AS p FROM known);
COMMENT ON COLUMN points.run IS 'id of the run';
COMMENT ON COLUMN points.started IS 'when the run began, UTC';
COMMENT ON COLUMN points.case_id IS 'the case';
COMMENT ON COLUMN points.hardware_key IS 'as the baseline''s file is named';
COMMENT ON COLUMN points.device_uuid IS
    'the device; null where the run measured the case on several';
COMMENT ON COLUMN points.median_s IS 'median step in seconds, over the run''s accepted attempts';
COMMENT ON COLUMN points.log_median IS 'its natural logarithm';
COMMENT ON COLUMN points.spread IS 'coefficient of variation inside a process';
COMMENT ON COLUMN points.rate IS 'items a second by the wall clock';
COMMENT ON COLUMN points.item IS 'what is counted: img, token, step';
COMMENT ON COLUMN points.peak_memory_bytes IS 'most memory that the allocator held';
COMMENT ON COLUMN points.status IS
    'the case''s verdict by its baseline; null where it was not judged';
COMMENT ON COLUMN points.environment IS 'reference of the software, in environments';

CREATE VIEW runs AS
SELECT
    run, hardware_key, started::TIMESTAMP AS started, try_cast(ended AS TIMESTAMP) AS ended,
    exit_status, cases, counts, file, path, bytes, compacted
FROM known JOIN files USING (file);
COMMENT ON COLUMN runs.run IS 'id of the run';
COMMENT ON COLUMN runs.hardware_key IS 'as the baseline''s file is named';
COMMENT ON COLUMN runs.started IS 'when it began, UTC';
COMMENT ON COLUMN runs.ended IS 'when it ended; null of one that was interrupted';
COMMENT ON COLUMN runs.exit_status IS 'of the command';
COMMENT ON COLUMN runs.cases IS 'how many cases were tried';
COMMENT ON COLUMN runs.counts IS 'JSON: how many have each status';
COMMENT ON COLUMN runs.file IS 'what its file is called, or was before it was compacted';
COMMENT ON COLUMN runs.path IS 'the file that it is read from';
COMMENT ON COLUMN runs.bytes IS 'size of its lines';
COMMENT ON COLUMN runs.compacted IS 'whether it is in a month that version 0.2 compacted';

CREATE VIEW environments AS
SELECT
    e.ref, e.body->>'host' AS host, e.body->>'torch' AS torch, e.body->>'hip' AS hip,
    e.body->>'rocm' AS rocm, e.body->>'cuda' AS cuda, e.body->>'driver' AS driver,
    e.body->>'kernel' AS kernel, e.body->>'commit' AS "commit", e.body
FROM (SELECT DISTINCT ON (e.ref) e FROM (SELECT unnest(environments) AS e FROM known));
COMMENT ON COLUMN environments.ref IS 'reference';
COMMENT ON COLUMN environments.host IS 'name of the machine';
COMMENT ON COLUMN environments.torch IS 'version';
COMMENT ON COLUMN environments.hip IS 'version';
COMMENT ON COLUMN environments.rocm IS 'version';
COMMENT ON COLUMN environments.cuda IS 'version';
COMMENT ON COLUMN environments.driver IS 'version';
COMMENT ON COLUMN environments.kernel IS 'version of Linux';
COMMENT ON COLUMN environments."commit" IS 'of the code that was measured';
COMMENT ON COLUMN environments.body IS 'JSON: all that is known';

CREATE VIEW lines AS
SELECT
    run, started, file, body->>'kind' AS kind,
    coalesce(body->>'$.case.id', body->>'case_id') AS case_id,
    coalesce(body->>'$.attempt.hardware_key', hardware_key) AS hardware_key,
    body
FROM read JOIN runs USING (path, file)
WHERE json_type(body) = 'OBJECT';
COMMENT ON COLUMN lines.run IS 'id of the run';
COMMENT ON COLUMN lines.started IS 'when the run began, UTC';
COMMENT ON COLUMN lines.file IS 'the run''s file';
COMMENT ON COLUMN lines.kind IS 'environment, attempt, verdict and so on (docs/architecture.md)';
COMMENT ON COLUMN lines.case_id IS 'the case';
COMMENT ON COLUMN lines.hardware_key IS 'as the baseline''s file is named';
COMMENT ON COLUMN lines.body IS 'JSON: the line';

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
COMMENT ON COLUMN attempts.run IS 'id of the run';
COMMENT ON COLUMN attempts.started IS 'when the run began, UTC';
COMMENT ON COLUMN attempts.case_id IS 'the case';
COMMENT ON COLUMN attempts.hardware_key IS 'as the baseline''s file is named';
COMMENT ON COLUMN attempts.process IS 'which of the run''s fresh processes, from 0';
COMMENT ON COLUMN attempts.time IS 'when it was made, UTC';
COMMENT ON COLUMN attempts.device_uuid IS 'the device';
COMMENT ON COLUMN attempts.environment IS 'reference of the software, in environments';
COMMENT ON COLUMN attempts.accepted IS 'whether it counts';
COMMENT ON COLUMN attempts.discarded IS 'why it does not';
COMMENT ON COLUMN attempts.invalid IS 'whether the hardware was to blame';
COMMENT ON COLUMN attempts.confirms IS
    'whether the case was measured again because it had looked different';
COMMENT ON COLUMN attempts.fault IS 'kind of the fault that left no measurement';
COMMENT ON COLUMN attempts.skipped IS 'why nothing was tried';
COMMENT ON COLUMN attempts.iterations IS 'measured steps';
COMMENT ON COLUMN attempts.median_s IS 'median step in seconds';
COMMENT ON COLUMN attempts.wall_s IS 'the measured stretch by the wall clock';
COMMENT ON COLUMN attempts.first_step_s IS 'the very first step';
COMMENT ON COLUMN attempts.compile_s IS 'compiling; null for eager';
COMMENT ON COLUMN attempts.host_bound IS 'whether the device waited for the host';
COMMENT ON COLUMN attempts.device_s IS 'median device time of a step that is host-bound';
COMMENT ON COLUMN attempts.peak_memory_bytes IS 'most memory that the allocator held';
COMMENT ON COLUMN attempts.clock_mhz IS 'median compute clock';
COMMENT ON COLUMN attempts.power_w IS 'mean power';
COMMENT ON COLUMN attempts.temperature_c IS 'highest temperature';
COMMENT ON COLUMN attempts.utilization IS 'mean, 0 to 1';
COMMENT ON COLUMN attempts.params IS 'JSON: the case''s parameters';

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
COMMENT ON COLUMN verdicts.run IS 'id of the run';
COMMENT ON COLUMN verdicts.started IS 'when the run began, UTC';
COMMENT ON COLUMN verdicts.case_id IS 'the case';
COMMENT ON COLUMN verdicts.case_status IS 'how the case stands in all';
COMMENT ON COLUMN verdicts.metric IS 'latency, throughput, memory and so on';
COMMENT ON COLUMN verdicts.status IS 'how the metric stands';
COMMENT ON COLUMN verdicts.ratio IS 'now over the baseline; above 1 is worse';
COMMENT ON COLUMN verdicts.low IS 'lower end of its 95% interval';
COMMENT ON COLUMN verdicts.high IS 'upper end';
COMMENT ON COLUMN verdicts.detectable_effect IS
    'slowdown that would have been called nine times in ten';
COMMENT ON COLUMN verdicts.value IS 'now';
COMMENT ON COLUMN verdicts.baseline IS 'then';
COMMENT ON COLUMN verdicts.unit IS 'of both';
COMMENT ON COLUMN verdicts.against IS 'which baseline: pinned, rolling, reference, published';
COMMENT ON COLUMN verdicts.reason IS 'in words';

CREATE VIEW kernels AS
SELECT
    run, started, case_id, hardware_key, k.name, k.calls, k.total_s, found.steps, found.source
FROM (
    SELECT run, started, case_id, hardware_key, found, unnest(found.kernels) AS k
    FROM (
        SELECT *, from_json(body->'kernels', '{
            "source": "VARCHAR", "steps": "BIGINT",
            "kernels": [{"name": "VARCHAR", "calls": "DOUBLE", "total_s": "DOUBLE"}]
        }') AS found
        FROM lines WHERE kind = 'kernels'
    )
);
COMMENT ON COLUMN kernels.run IS 'id of the run';
COMMENT ON COLUMN kernels.started IS 'when the run began, UTC';
COMMENT ON COLUMN kernels.case_id IS 'the case';
COMMENT ON COLUMN kernels.hardware_key IS 'as the baseline''s file is named';
COMMENT ON COLUMN kernels.name IS 'the kernel';
COMMENT ON COLUMN kernels.calls IS 'how often it runs in a step';
COMMENT ON COLUMN kernels.total_s IS 'how long it runs in a step, in seconds';
COMMENT ON COLUMN kernels.steps IS 'from how many steps the means are';
COMMENT ON COLUMN kernels.source IS 'the profiler';
