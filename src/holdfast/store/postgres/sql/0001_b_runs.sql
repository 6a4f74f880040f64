-- Version 1; programs from version 1 on can work with it.

-- What live runs do is one round trip each: a function does in the database what the other stores do step by step. What
-- is refused is an answer and no error, so that it harms nothing that is sent along with it:
--   0 saved   1 there is no such run   2 it has ended   3 written before   4 does not follow what is there   5 taken
--   6 it is not this server's   7 its session is busy   8 too many wait for its session
--
-- `p_me` is the server, NULL one that has not joined the others (it may write what is nobody's). Every change to a run
-- is made by `holdfast.hold`ing the server's place among the others, so that none is made after it was fenced (R17).
-- `p_channels` and `p_payloads` are notices, sent when this is committed.

-- The plans are made for few rows, found by their indexes, whatever the tables' size was when they were made: a server
-- keeps them for as long as its connection lasts.

-- Append batches of several runs, one a run. NULL: all are saved. Else what became of each: a number of the above, and
-- the number of events that its run's log has.
CREATE FUNCTION holdfast.append(
    p_me integer,
    -- Wait for the disk?
    p_sync boolean,
    -- Is it tried again, after an attempt that may have succeeded?
    p_again boolean,
    p_runs text[],
    p_firsts integer[],
    p_counts integer[],
    p_ats double precision[],
    p_events bytea[],
    -- What runs do from now on; NULL: what they did before. And NULL altogether where none has changed.
    p_statuses text[],
    p_channels text[],
    p_payloads text[]
) RETURNS integer[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    l_saved integer;
    l_key bigint;
    l_has_ended boolean;
    l_is_mine boolean;
    l_next integer;
    l_answer integer[];
    l_is_held boolean := holdfast.hold(p_me);
BEGIN
    PERFORM set_config('synchronous_commit', CASE WHEN p_sync THEN 'on' ELSE 'off' END, true);
    INSERT INTO holdfast.log (run, first, count, at, form, events)
    SELECT found.key, given.first, given.count, given.at, 0, given.events
    FROM unnest(p_runs, p_firsts, p_counts, p_ats, p_events) AS given (run, first, count, at, events)
    CROSS JOIN LATERAL (
        SELECT runs.key, coalesce(
            (SELECT log.first + log.count FROM holdfast.log WHERE log.run = runs.key ORDER BY log.first DESC LIMIT 1), 0
        ) AS next
        FROM holdfast.runs
        WHERE runs.id = given.run AND runs.outcome IS NULL AND runs.owner IS NOT DISTINCT FROM p_me
        LIMIT 1
    ) AS found
    WHERE l_is_held AND given.first = found.next AND given.count > 0;
    GET DIAGNOSTICS l_saved = ROW_COUNT;
    IF p_statuses IS NOT NULL AND l_is_held THEN
        UPDATE holdfast.runs SET status = given.status
        FROM unnest(p_runs, p_statuses) AS given (run, status)
        WHERE runs.id = given.run AND runs.outcome IS NULL AND runs.owner IS NOT DISTINCT FROM p_me
            AND runs.status <> given.status;
    END IF;
    IF p_channels IS NOT NULL THEN
        PERFORM pg_notify(given.channel, given.payload)
        FROM unnest(p_channels, p_payloads) AS given (channel, payload);
    END IF;
    IF l_saved = cardinality(p_runs) THEN
        RETURN NULL;
    END IF;
    FOR i IN 1 .. cardinality(p_runs) LOOP
        SELECT runs.key, runs.outcome IS NOT NULL, l_is_held AND runs.owner IS NOT DISTINCT FROM p_me
        INTO l_key, l_has_ended, l_is_mine FROM holdfast.runs WHERE id = p_runs[i];
        SELECT log.first + log.count INTO l_next
        FROM holdfast.log WHERE log.run = l_key ORDER BY log.first DESC LIMIT 1;
        l_next := coalesce(l_next, 0);
        l_answer := l_answer || CASE
            WHEN l_key IS NULL THEN 1
            WHEN NOT l_has_ended AND NOT l_is_mine THEN 6
            WHEN p_counts[i] = 0 AND p_firsts[i] = l_next AND NOT l_has_ended THEN 0
            WHEN EXISTS (
                SELECT 1 FROM holdfast.log
                WHERE log.run = l_key AND log.first = p_firsts[i] AND log.count = p_counts[i] AND (
                    log.xmin = pg_current_xact_id()::xid OR p_again AND log.events = p_events[i])
            ) THEN 0
            WHEN l_has_ended THEN 2
            WHEN p_firsts[i] < l_next THEN 3
            ELSE 4
        END || l_next;
    END LOOP;
    RETURN l_answer;
END
$$;

-- Have a session, used now, in which so many runs begin; it takes the title if it has none. Its newest message.
CREATE FUNCTION holdfast.use_session(
    p_session text,
    -- Id and title, case-folded.
    p_folded bytea,
    p_folded_title bytea,
    p_title text,
    p_at double precision,
    p_began integer
) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    l_head bigint;
BEGIN
    LOOP
        UPDATE holdfast.sessions SET
            updated_at = greatest(updated_at, p_at),
            runs = runs + p_began,
            title = CASE title WHEN '' THEN p_title ELSE title END,
            folded = CASE title WHEN '' THEN p_folded_title || '\x0a' || p_folded ELSE folded END
        WHERE id = p_session RETURNING head INTO l_head;
        IF FOUND THEN
            RETURN l_head;
        END IF;
        -- A session that comes back after it was deleted counts the runs that were going all the while.
        INSERT INTO holdfast.sessions (id, created_at, updated_at, title, folded, head, runs, metadata)
        SELECT p_session, p_at, p_at, p_title, p_folded_title || '\x0a' || p_folded, NULL, count(*), '{}'
        FROM holdfast.runs WHERE session = p_session AND NOT ephemeral
        ON CONFLICT (id) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- Another has made it in the meantime.
    END LOOP;
END
$$;

-- Save messages, each below the one before, and move the session to the last. Their ids.
CREATE FUNCTION holdfast.add_messages(
    p_session text, p_parent bigint, p_runs text[], p_ats double precision[], p_bodies bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    l_ids bigint[] := ARRAY(
        SELECT nextval('holdfast.messages_id_seq') FROM generate_series(1, cardinality(p_bodies)) ORDER BY 1);
BEGIN
    INSERT INTO holdfast.messages (id, parent, session, run, created_at, body)
    SELECT given.id, lag(given.id, 1, p_parent) OVER (ORDER BY given.number), p_session, given.run, given.at, given.body
    FROM unnest(l_ids, p_runs, p_ats, p_bodies) WITH ORDINALITY AS given (id, run, at, body, number);
    IF FOUND THEN
        UPDATE holdfast.sessions SET head = l_ids[cardinality(l_ids)] WHERE id = p_session;
    END IF;
    RETURN l_ids;
END
$$;

-- Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it. With a place in
-- its session's lane: those before it, in order.
CREATE FUNCTION holdfast.create_run(
    p_me integer,
    p_again boolean,
    p_run text,
    p_session text,
    p_folded bytea,
    p_model text,
    p_created_at double precision,
    p_inputs integer,
    p_parent bigint,
    p_rooted boolean,
    p_ephemeral boolean,
    p_conversation text,
    p_body bytea,
    p_continuation bytea,
    p_title text,
    p_folded_title bytea,
    p_is_response boolean,
    p_key text,
    p_fingerprint text,
    -- What the request was, whether or not it has a key.
    p_request text,
    -- wait, replace, reject; NULL: it has no place.
    p_lane text,
    p_max_queued integer,
    OUT answer integer,
    OUT holder text,
    OUT fingerprint text,
    OUT ahead text[]
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    l_key bigint;
BEGIN
    answer := 0;
    IF p_again THEN
        SELECT key INTO l_key FROM holdfast.runs WHERE id = p_run AND body = p_body;
        IF FOUND THEN
            ahead := holdfast.lane_before(p_session, l_key);
            RETURN;
        END IF;
    END IF;
    IF NOT holdfast.hold(p_me) THEN
        answer := 6;
        RETURN;
    END IF;
    IF p_key IS NOT NULL THEN
        LOOP
            -- Who comes second waits here until the first has committed, or given up.
            INSERT INTO holdfast.idempotency AS taken (key, fingerprint, run) VALUES (p_key, p_fingerprint, p_run)
            ON CONFLICT (key) DO NOTHING;
            EXIT WHEN FOUND;
            SELECT taken.run, taken.fingerprint INTO holder, fingerprint
            FROM holdfast.idempotency AS taken WHERE taken.key = p_key;
            IF FOUND THEN
                answer := 5;
                RETURN;
            END IF;
            -- Its run was deleted in the meantime, and the key with it.
        END LOOP;
    END IF;
    IF p_lane IS NOT NULL THEN
        -- One after the other: who comes second finds the first.
        PERFORM holdfast.lock_lane(p_session);
        ahead := holdfast.lane_before(p_session, NULL);
        IF p_lane = 'reject' AND ahead <> '{}' THEN
            answer := 7;
        ELSIF p_lane = 'wait' AND cardinality(ahead) > p_max_queued THEN
            answer := 8;
        END IF;
        IF answer <> 0 THEN
            DELETE FROM holdfast.idempotency AS taken WHERE taken.key = p_key;
            RETURN;
        END IF;
    END IF;
    INSERT INTO holdfast.runs (
        id, owner, replica, status, in_lane, fingerprint,
        session, folded, model, created_at, inputs, parent, rooted, ephemeral, conversation, body, continuation
    ) VALUES (
        p_run, p_me, coalesce((SELECT name FROM holdfast.replicas WHERE id = p_me), ''),
        CASE WHEN ahead <> '{}' THEN 'queued' ELSE 'running' END, p_lane IS NOT NULL, p_request,
        p_session, p_folded, p_model, p_created_at, p_inputs, p_parent, p_rooted, p_ephemeral, p_conversation, p_body,
        p_continuation
    ) ON CONFLICT (id) DO NOTHING RETURNING key INTO l_key;
    IF l_key IS NULL THEN
        DELETE FROM holdfast.idempotency AS taken WHERE taken.key = p_key;
        answer := 3;
        RETURN;
    END IF;
    IF NOT p_ephemeral THEN
        PERFORM holdfast.use_session(p_session, p_folded, p_folded_title, p_title, p_created_at, 1);
        IF p_is_response THEN
            INSERT INTO holdfast.responses (run) VALUES (l_key);
        END IF;
    END IF;
END
$$;

-- Append a run's last batch, and save everything, all or nothing. What became of it, and how many events its log has.
CREATE FUNCTION holdfast.end_run(
    p_me integer,
    p_again boolean,
    p_run text,
    p_first integer,
    p_count integer,
    p_at double precision,
    p_events bytea,
    p_outcome text,
    p_ended_at double precision,
    p_result bytea,
    p_title text,
    p_folded_title bytea,
    p_bodies bytea[],
    p_channels text[],
    p_payloads text[],
    OUT answer integer,
    OUT next integer
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    l_run record;
    l_head bigint;
    l_ids bigint[];
    l_is_held boolean := holdfast.hold(p_me);
BEGIN
    SELECT
        key, owner, in_lane, session, folded, created_at, inputs, parent, rooted, ephemeral, conversation, outcome
    INTO l_run FROM holdfast.runs WHERE id = p_run FOR UPDATE;
    IF NOT FOUND THEN
        answer := 1;
        RETURN;
    END IF;
    next := coalesce(
        (SELECT log.first + log.count FROM holdfast.log WHERE log.run = l_run.key ORDER BY log.first DESC LIMIT 1), 0);
    IF l_run.outcome IS NOT NULL THEN
        answer := CASE WHEN p_again AND EXISTS (
            SELECT 1 FROM holdfast.log WHERE log.run = l_run.key AND log.first = p_first AND log.events = p_events
        ) THEN 0 ELSE 2 END;
        RETURN;
    END IF;
    IF NOT l_is_held OR l_run.owner IS DISTINCT FROM p_me THEN
        answer := 6;
        RETURN;
    END IF;
    IF p_first <> next THEN
        answer := CASE WHEN p_first < next THEN 3 ELSE 4 END;
        RETURN;
    END IF;
    answer := 0;
    IF l_run.in_lane THEN
        -- Who takes a place on the session meanwhile waits here, and finds that this run has ended.
        PERFORM holdfast.lock_lane(l_run.session);
    END IF;
    IF NOT l_run.ephemeral THEN
        -- The session may have been deleted while the run was going: it comes back, with this run alone. From here on
        -- its row is ours, so that whoever else ends on it finds our messages.
        l_head := holdfast.use_session(l_run.session, l_run.folded, p_folded_title, p_title, p_ended_at, 0);
        IF l_run.parent IS NOT NULL THEN
            l_head := (SELECT id FROM holdfast.messages WHERE id = l_run.parent);
        ELSIF l_run.rooted THEN
            l_head := NULL;
        END IF;
        l_ids := holdfast.add_messages(
            l_run.session,
            l_head,
            array_fill(p_run, ARRAY[cardinality(p_bodies)]),
            ARRAY(
                SELECT CASE WHEN number <= l_run.inputs THEN l_run.created_at ELSE p_ended_at END
                FROM generate_series(1, cardinality(p_bodies)) AS number ORDER BY number),
            p_bodies);
        l_head := coalesce(l_ids[cardinality(l_ids)], l_head);
        IF l_run.conversation IS NOT NULL THEN
            INSERT INTO holdfast.conversations (name, created_at, head, run, metadata, kept)
            VALUES (l_run.conversation, l_run.created_at, l_head, p_run, '{}', false)
            ON CONFLICT (name) DO UPDATE SET head = excluded.head, run = excluded.run;
        END IF;
    END IF;
    UPDATE holdfast.runs
    SET outcome = p_outcome, ended_at = p_ended_at, result = p_result, head = l_head, continuation = NULL,
        owner = NULL, status = 'running'
    WHERE key = l_run.key;
    IF p_count > 0 THEN
        INSERT INTO holdfast.log (run, first, count, at, form, events)
        VALUES (l_run.key, p_first, p_count, p_at, 0, p_events);
    END IF;
    IF l_run.in_lane THEN
        PERFORM holdfast.tell_next(l_run.session, p_me);
    END IF;
    IF p_channels IS NOT NULL THEN
        PERFORM pg_notify(given.channel, given.payload)
        FROM unnest(p_channels, p_payloads) AS given (channel, payload);
    END IF;
END
$$;
