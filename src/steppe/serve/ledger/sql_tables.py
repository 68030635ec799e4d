"""The tables of a ledger."""

SCHEMA = 1
"""Version of these tables."""
TABLES = (
    "CREATE TABLE IF NOT EXISTS steppe_about (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO steppe_about (name, value) VALUES ('schema', {schema}) ON CONFLICT (name) DO NOTHING",
    """CREATE TABLE IF NOT EXISTS steppe_decisions (
        number {number}, endpoint TEXT NOT NULL, key TEXT NOT NULL, sequence TEXT, made DOUBLE PRECISION NOT NULL,
        policy TEXT NOT NULL, version TEXT NOT NULL, propensity DOUBLE PRECISION NOT NULL, steps TEXT NOT NULL,
        is_routed INTEGER NOT NULL, feedback BIGINT NOT NULL DEFAULT 0,
        total DOUBLE PRECISION NOT NULL DEFAULT 0, learned DOUBLE PRECISION, ended DOUBLE PRECISION, ending TEXT,
        UNIQUE (endpoint, key))""",
    """CREATE INDEX IF NOT EXISTS steppe_sequences
        ON steppe_decisions (endpoint, sequence, number) WHERE sequence IS NOT NULL""",
    "CREATE INDEX IF NOT EXISTS steppe_open ON steppe_decisions (endpoint, number) WHERE ended IS NULL",
    "CREATE INDEX IF NOT EXISTS steppe_ended ON steppe_decisions (endpoint, ended) WHERE ended IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS steppe_requests (
        number {number}, endpoint TEXT NOT NULL, request TEXT NOT NULL, key TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS steppe_request_names ON steppe_requests (endpoint, request, number)",
    "CREATE INDEX IF NOT EXISTS steppe_request_keys ON steppe_requests (endpoint, key)",
    """CREATE TABLE IF NOT EXISTS steppe_rewards (
        endpoint TEXT NOT NULL, identity TEXT NOT NULL, key TEXT NOT NULL, reward DOUBLE PRECISION NOT NULL,
        made DOUBLE PRECISION NOT NULL, truth TEXT, PRIMARY KEY (endpoint, identity))""",
    "CREATE INDEX IF NOT EXISTS steppe_reward_keys ON steppe_rewards (endpoint, key)",
    """CREATE TABLE IF NOT EXISTS steppe_arms (
        endpoint TEXT NOT NULL, node TEXT NOT NULL, branch TEXT NOT NULL, chosen BIGINT NOT NULL,
        requests BIGINT NOT NULL, count BIGINT NOT NULL, mean DOUBLE PRECISION NOT NULL,
        squares DOUBLE PRECISION NOT NULL, lowest DOUBLE PRECISION NOT NULL, highest DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (endpoint, node, branch))""",
    """CREATE TABLE IF NOT EXISTS steppe_writers (
        endpoint TEXT NOT NULL, writer TEXT NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (endpoint, writer))""",
)
