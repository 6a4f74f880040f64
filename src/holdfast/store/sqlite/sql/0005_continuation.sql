-- Version 5: what a run needs that is taken up again after its server was gone (R15); deleted when it ends.

CREATE TABLE continuations (
    run INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);
