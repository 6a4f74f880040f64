-- Version 4: runs of which nothing is to be kept are found at every start, however many others there are.

CREATE INDEX runs_unkept ON runs (key) WHERE ephemeral;
