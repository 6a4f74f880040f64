-- Version 2: what live runs append goes to a journal first.

-- A row of `log` also is an entry of its index, on a page that few other runs share: with a thousand live runs every
-- event would write a page. The journal has no index but its own order, so all that one commit brings goes to the few
-- pages at its end. A run's batches move to `log` many at a time, as one row of form 2, and when it ends; what has
-- moved is deleted here from the front. So the journal stays small enough to be searched by reading it. Rows of a run
-- that is deleted go with it, since another run may be given its key.
CREATE TABLE journal (
    -- About how many bytes were appended before it: says how old a row is, and how far from the end.
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at REAL NOT NULL,
    -- One batch, as in form 0 of `log`.
    events BLOB NOT NULL
);
-- `log` is as it was. Its form 0 is written no more; the new form 2 is several batches, like form 1, not compressed.
