-- The ten days with the longest mean delay.
CREATE MATERIALIZED VIEW worst_days AS
SELECT date(at) AS day, count(*) AS flights, round(avg(dep_delay), 1) AS minutes
FROM flights
GROUP BY date(at)
ORDER BY minutes DESC
LIMIT 10
