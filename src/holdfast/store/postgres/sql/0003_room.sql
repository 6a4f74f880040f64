-- Version 3; programs from version 1 on can work with it.

-- How much room is set aside for what is being written (S12), for runs and for what is none.
ALTER TABLE holdfast.admissions ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.admissions ADD COLUMN is_run boolean NOT NULL DEFAULT true;
