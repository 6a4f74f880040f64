-- Version 1.

-- A run's integer key is what the hot table refers to; its text id is what everybody else uses. The integer may be
-- used again once its run is gone, so that nothing that outlives a run refers to it.
CREATE TABLE runs (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at REAL NOT NULL,
    inputs INTEGER NOT NULL,
    parent INTEGER,
    rooted INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    conversation TEXT,
    -- NULL while it runs.
    outcome TEXT,
    ended_at REAL,
    result BLOB,
    compacted INTEGER NOT NULL DEFAULT 0
);
-- An index ends with the key, so each of these also gives its runs newest first.
CREATE INDEX runs_by_session ON runs (session);
CREATE INDEX runs_by_outcome ON runs (outcome);
CREATE INDEX runs_by_model ON runs (model);
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_to_compact ON runs (ended_at) WHERE ended_at IS NOT NULL AND compacted = 0;

-- The run as it was asked for: apart, because a row that holds a picture should not be written again when the run ends.
CREATE TABLE requests (
    run INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- The hot table: a row per batch. Rows go to the end of one table whatever their run, and only the small index entry
-- has a place of its own: with hundreds of runs that writes far fewer pages than a table sorted by run.
CREATE TABLE log (
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at REAL NOT NULL,
    -- 0: `events` is one batch, a JSON array of events. 1: several batches, compressed.
    form INTEGER NOT NULL,
    events BLOB NOT NULL
);
CREATE UNIQUE INDEX log_by_run ON log (run, first);

CREATE TABLE idempotency (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    run TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_by_run ON idempotency (run);

CREATE TABLE sessions (
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    title TEXT NOT NULL,
    -- Title and id, case-folded: what a search looks in.
    folded TEXT NOT NULL,
    head INTEGER,
    runs INTEGER NOT NULL,
    metadata BLOB NOT NULL
);
CREATE INDEX sessions_by_use ON sessions (updated_at);

-- AUTOINCREMENT: the id of a deleted message is never given to another, so that an old reference finds nothing.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER,
    session TEXT NOT NULL,
    run TEXT,
    created_at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX messages_by_session ON messages (session);

-- `used` counts uses instead of telling the time: no two are alike, and a clock that is set back changes nothing.
CREATE TABLE responses (
    run INTEGER PRIMARY KEY,
    used INTEGER NOT NULL UNIQUE
);

CREATE TABLE conversations (
    name TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    head INTEGER,
    run TEXT,
    metadata BLOB NOT NULL,
    kept INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX conversations_by_run ON conversations (run);
CREATE INDEX conversations_by_head ON conversations (head);

CREATE TABLE memories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    scope TEXT NOT NULL,
    text TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE INDEX memories_by_scope ON memories (scope);
-- `terms` are cut by us (holdfast.store.search_terms), since the tokenizer takes a sentence without spaces for one word.
CREATE VIRTUAL TABLE memory_terms USING fts5 (scope, terms, tokenize = 'porter unicode61');

-- One row, written by every health check.
CREATE TABLE health (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    checked_at REAL NOT NULL
);
INSERT INTO health (id, checked_at) VALUES (1, 0);
