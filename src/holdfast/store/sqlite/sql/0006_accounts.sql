-- Version 6: keys for a team, what they use, and who did what (S12-S14).

-- Whose something is: the name of a key, or empty for the admin, whose all is that was there before. It stands in front
-- of the names that things are stored by, so that these columns only say what is there. A message is its session's
-- owner's, a response its run's; conversations and idempotency keys are found by their names alone.
ALTER TABLE runs ADD COLUMN owner TEXT AS (
    CASE WHEN instr(session, char(31)) THEN substr(session, 1, instr(session, char(31)) - 1) ELSE '' END
);
-- The key that asked for it, and what is set aside for it while it goes on.
ALTER TABLE runs ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN reserved_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN reserved_cost REAL NOT NULL DEFAULT 0;
-- Its request, and when it has ended its log; counted for those whose room may be limited, and not for the admin.
ALTER TABLE runs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN owner TEXT AS (
    CASE WHEN instr(id, char(31)) THEN substr(id, 1, instr(id, char(31)) - 1) ELSE '' END
);
ALTER TABLE memories ADD COLUMN owner TEXT AS (
    CASE WHEN instr(scope, char(31)) THEN substr(scope, 1, instr(scope, char(31)) - 1) ELSE '' END
);
-- What is the admin's costs these nothing.
CREATE INDEX runs_by_owner ON runs (owner, bytes) WHERE owner <> '';
CREATE INDEX runs_going_on ON runs (asked_by) WHERE asked_by <> '' AND outcome IS NULL;
CREATE INDEX sessions_by_owner ON sessions (owner, updated_at) WHERE owner <> '';
CREATE INDEX memories_by_owner ON memories (owner) WHERE owner <> '';

CREATE TABLE keys (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- When runs of a key with `requests_per_minute` began, of the last minute.
CREATE TABLE key_starts (
    key TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX key_starts_by_key ON key_starts (key, at);

-- Counted in the transaction that ends a run.
CREATE TABLE usage (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, key, agent, model)
) WITHOUT ROWID;

-- AUTOINCREMENT and these triggers: nothing that stands here is changed, deleted, or numbered again.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    what TEXT NOT NULL,
    details BLOB NOT NULL
);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;
