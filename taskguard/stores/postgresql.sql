-- The PostgreSQL store: three tables, and one function for each verb. For PostgreSQL 12 and newer.
--
-- The store runs this file itself when something of it is missing. If its role may not create a schema, run it once
-- by hand (psql -1 -f postgresql.sql; for another schema, replace "taskguard" with its name throughout) and then
--     GRANT USAGE ON SCHEMA taskguard TO the_role;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA taskguard TO the_role;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA taskguard TO the_role;
--
-- The functions are `taskguard/protocol/rules.py` in PL/pgSQL. A released function never changes: its successor gets
-- the next number, so that two releases can use one schema at the same time.
--
-- All times and durations are microseconds, times by this server's clock: SELECT to_timestamp(since / 1e6).
-- Arguments begin with an underscore, so that none can be mistaken for a column.

-- Many processes may start at once, and IF NOT EXISTS alone does not stop two of them from creating the same thing.
SELECT pg_advisory_xact_lock(6083744271955218);

-- CREATE SCHEMA IF NOT EXISTS would require the permission to create one even if it exists.
DO $$ BEGIN
    IF to_regnamespace('taskguard') IS NULL THEN
        CREATE SCHEMA taskguard;
    END IF;
END $$;

-- The entry of a key. The defaults are an expired entry: it counts as none, and exists to be locked.
CREATE TABLE IF NOT EXISTS taskguard.entry (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,          -- ordered by its bytes: prefixes are ranges
    state       text    NOT NULL DEFAULT 'free' CHECK (state IN ('free', 'queued', 'running', 'done')),
    owner       text    NOT NULL DEFAULT '',
    attempt     text    NOT NULL DEFAULT '',
    token       bigint  NOT NULL DEFAULT 0,
    since       bigint  NOT NULL DEFAULT 0,
    until       bigint  NOT NULL DEFAULT 0,         -- queued, running: when the claim expires; free, done: deleted then
    keep        bigint  NOT NULL DEFAULT 0,         -- how long an expired claim is still kept
    starts      integer NOT NULL DEFAULT 0,
    took_over   boolean NOT NULL DEFAULT false,
    payload     text    NOT NULL DEFAULT '',
    copy        text    NOT NULL DEFAULT '',
    copies      integer NOT NULL DEFAULT 0,
    copy_until  bigint  NOT NULL DEFAULT 0,         -- no duplicate publishes until then; 0: no publication is known
    held_until  bigint  NOT NULL DEFAULT 0,         -- free, done: other owners are kept out until then
    requeued_by text    NOT NULL DEFAULT '',        -- the attempt that last requeued the job
    deaths      jsonb   NOT NULL DEFAULT '[]',      -- [["owner", starts, "payload"], ...]: who lost the key without an end
    how         text,
    outcome     bytea,
    gone_at     bigint  NOT NULL GENERATED ALWAYS AS
                (CASE WHEN state IN ('queued', 'running') THEN until + keep ELSE until END) STORED,
    PRIMARY KEY (namespace, key)
);
-- For people. A schema of an older version lacks them.
ALTER TABLE taskguard.entry
    ADD COLUMN IF NOT EXISTS label       text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS whereabouts text NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS entry_gone_at ON taskguard.entry (gone_at);

-- How one job ended, whoever holds the key by then.
CREATE TABLE IF NOT EXISTS taskguard.receipt (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    attempt     text    NOT NULL,
    how         text    NOT NULL,
    token       bigint  NOT NULL,
    at          bigint  NOT NULL,
    until       bigint  NOT NULL,                   -- deleted then
    outcome     bytea,
    twin        text    NOT NULL DEFAULT '',        -- the holder that the job was skipped for, or joined
    answered    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, key, owner)
);
CREATE INDEX IF NOT EXISTS receipt_until ON taskguard.receipt (until);

-- Recent decisions; no promise about a key depends on them.
CREATE TABLE IF NOT EXISTS taskguard.history (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace   text COLLATE "C" NOT NULL,
    notable     boolean NOT NULL,                   -- apart from ordinary lines, which would crowd it out
    at          bigint  NOT NULL,
    key         text COLLATE "C" NOT NULL,
    text        text    NOT NULL
);
CREATE INDEX IF NOT EXISTS history_log ON taskguard.history (namespace, notable, id);


-- Never now(): that is the start of the transaction, before it waited for the lock.
CREATE OR REPLACE FUNCTION taskguard.now_1() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;


-- Lock the key until the end of the transaction. Every verb begins with this and reads the clock and the receipts after
-- it, so the verbs of a key happen one after the other.
--
-- This locks a row, and inserts one if there is none. It takes no advisory lock: row locks need no shared memory (a
-- renewal takes hundreds) and no hash of the key, and also work where advisory locks are accepted and do nothing.
CREATE OR REPLACE FUNCTION taskguard.hold_1(_namespace text, _key text) RETURNS taskguard.entry
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry;
BEGIN
    -- What others did while this one waited is visible to the next statement in no other isolation level.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE invalid_transaction_state USING MESSAGE = 'this works in READ COMMITTED transactions only';
    END IF;
    -- A verb that was answered has happened, also after a crash. (All other settings of it wait at least for the disk.)
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    LOOP
        SELECT * INTO e FROM taskguard.entry WHERE namespace = _namespace AND key = _key FOR UPDATE;
        EXIT WHEN FOUND;
        -- Nothing is inserted if somebody else was first. The row found then may be purged before it is locked, hence
        -- the loop.
        INSERT INTO taskguard.entry (namespace, key) VALUES (_namespace, _key)
            ON CONFLICT DO NOTHING RETURNING * INTO e;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN e;
END $$;


CREATE OR REPLACE FUNCTION taskguard.save_1(e taskguard.entry) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE taskguard.entry SET
        state = e.state, owner = e.owner, attempt = e.attempt, token = e.token, since = e.since, until = e.until,
        keep = e.keep, starts = e.starts, took_over = e.took_over, payload = e.payload, copy = e.copy,
        copies = e.copies, copy_until = e.copy_until, held_until = e.held_until, requeued_by = e.requeued_by,
        deaths = e.deaths, how = e.how, outcome = e.outcome
    WHERE namespace = e.namespace AND key = e.key;
END $$;


-- The same, with the columns for people.
CREATE OR REPLACE FUNCTION taskguard.save_2(e taskguard.entry) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE taskguard.entry SET
        state = e.state, owner = e.owner, attempt = e.attempt, token = e.token, since = e.since, until = e.until,
        keep = e.keep, starts = e.starts, took_over = e.took_over, payload = e.payload, copy = e.copy,
        copies = e.copies, copy_until = e.copy_until, held_until = e.held_until, requeued_by = e.requeued_by,
        deaths = e.deaths, how = e.how, outcome = e.outcome, label = e.label, whereabouts = e.whereabouts
    WHERE namespace = e.namespace AND key = e.key;
END $$;


-- The owner's receipt; all NULL if there is none or it has expired.
CREATE OR REPLACE FUNCTION taskguard.receipt_1(_namespace text, _key text, _owner text, _now bigint)
RETURNS taskguard.receipt LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r taskguard.receipt;
BEGIN
    SELECT * INTO r FROM taskguard.receipt
        WHERE namespace = _namespace AND key = _key AND owner = _owner AND until > _now;
    RETURN r;
END $$;


CREATE OR REPLACE FUNCTION taskguard.save_receipt_1(
    _namespace text, _key text, _owner text, _attempt text, _how text, _token bigint, _at bigint, _until bigint,
    _outcome bytea, _twin text, _answered boolean
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO taskguard.receipt
        (namespace, key, owner, attempt, how, token, at, until, outcome, twin, answered)
    VALUES
        (_namespace, _key, _owner, _attempt, _how, _token, _at, _until, _outcome, _twin, _answered)
    ON CONFLICT (namespace, key, owner) DO UPDATE SET
        attempt = _attempt, how = _how, token = _token, at = _at, until = _until, outcome = _outcome,
        twin = _twin, answered = _answered;
END $$;


-- Whether the claimant has the newest claim. _token is 0 if only the attempt is known. If the token is known, it is
-- compared too: a late claim packet is granted again under its old attempt.
CREATE OR REPLACE FUNCTION taskguard.is_newest_1(e taskguard.entry, _owner text, _attempt text, _token bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT _attempt <> '' AND e.attempt = _attempt AND e.owner = _owner AND _token IN (0, e.token)
$$;


-- The entry when its claim has ended.
CREATE OR REPLACE FUNCTION taskguard.ended_1(
    e taskguard.entry, _state text, _how text, _keep_for bigint, _linger bigint, _outcome bytea, _now bigint
) RETURNS taskguard.entry LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    e.state := _state;
    e.attempt := '';
    e.since := _now;
    e.until := _now + greatest(_keep_for, _linger);
    e.keep := _keep_for;
    e.starts := 0; e.took_over := false;
    e.copy := ''; e.copies := 0; e.copy_until := 0;
    e.held_until := CASE WHEN _linger <> 0 THEN _now + _linger ELSE 0 END;
    e.how := _how;
    e.outcome := CASE WHEN _state = 'done' THEN _outcome END;
    RETURN e;
END $$;


-- answer: 'lease'      with owner, attempt, token, state, starts, took_over
--         'held'       with owner, attempt, token, state, since, remaining, payload, publish, stamp
--         'completed'  with owner, how, token, since, outcome, twin, answered, payload
CREATE OR REPLACE FUNCTION taskguard.claim_4(
    _namespace text, _key text, _owner text, _attempt text, _state text, _lease bigint, _keep_for bigint, _floor bigint,
    _reuse text, _skip boolean, _join text, _replace_queued boolean, _payload text, _copy text, _copy_for bigint,
    _stamp text, _label text, _where text,
    OUT answer text, OUT owner text, OUT attempt text, OUT token bigint, OUT state text, OUT since bigint,
    OUT remaining bigint, OUT starts integer, OUT took_over boolean, OUT payload text, OUT publish boolean,
    OUT stamp text, OUT how text, OUT outcome bytea, OUT twin text, OUT answered boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry := taskguard.hold_1(_namespace, _key);
    now bigint := taskguard.now_1();
    known boolean := e.gone_at > now;
    unended boolean := known AND e.state IN ('queued', 'running');
    live boolean := unended AND e.until > now;
    mine boolean := known AND e.owner = _owner;
    own taskguard.receipt := taskguard.receipt_1(_namespace, _key, _owner, now);
    r taskguard.receipt;
    others jsonb;
BEGIN
    -- Asked again after a lost reply: the same lease, unless it ran out and the job has ended since, by another copy of it.
    IF mine AND e.attempt = _attempt AND e.state = _state AND (live OR coalesce(own.how, 'released') = 'released') THEN
        e.until := now + _lease;
        PERFORM taskguard.save_1(e);
        answer := 'lease'; owner := e.owner; attempt := e.attempt; token := e.token; state := e.state;
        starts := e.starts; took_over := e.took_over;
        RETURN;
    END IF;

    -- The owner's own end; who asks again because the reply was lost is answered in the same words. Or that of the job
    -- it joins, unless it runs elsewhere: then it ends as that run does. (A comparison with what is NULL is not true.)
    IF own.how = 'skipped' AND own.attempt = _attempt THEN
        answer := 'held'; owner := own.twin; attempt := ''; token := own.token; state := 'running';
        since := own.at; remaining := 0; payload := ''; publish := false; stamp := '';
        IF known AND e.state = 'running' AND e.token = own.token THEN
            owner := e.owner; since := e.since; remaining := e.until - now; payload := e.payload;
        END IF;
        RETURN;
    ELSIF own.how <> 'released' OR own.attempt = _attempt THEN
        r := own;
        IF own.twin <> '' AND own.attempt = _attempt THEN
            r.owner := own.twin; r.twin := '';
        END IF;
    ELSIF _join <> '' AND NOT (live AND mine AND e.state = 'running') THEN
        r := taskguard.receipt_1(_namespace, _key, _join, now);
        IF r.how IN ('succeeded', 'failed') THEN
            -- The job ends as its twin did. Another copy of its message may not know of the twin, and finds its receipt.
            r.twin := ''; r.answered := false;
            PERFORM taskguard.save_receipt_1(
                _namespace, _key, _owner, _attempt, r.how, r.token, r.at, now + _keep_for, r.outcome, _join, false);
            IF mine AND e.state = 'queued' THEN
                PERFORM taskguard.save_1(taskguard.ended_1(e, 'free', r.how, e.keep, 0, NULL, now));
            END IF;
        ELSE
            r := NULL;
        END IF;
    END IF;
    IF r.how IS NOT NULL THEN
        answer := 'completed'; owner := r.owner; how := r.how; token := r.token; since := r.at;
        outcome := r.outcome; twin := r.twin; answered := r.answered; payload := '';
        RETURN;
    END IF;

    -- Finished work, the owner's own or one that this claim may reuse.
    IF known AND e.state = 'done'
       AND (mine OR _reuse = 'anything' OR (_reuse = 'success' AND e.how = 'succeeded')) THEN
        answer := 'completed'; owner := e.owner; how := coalesce(e.how, 'succeeded'); token := e.token;
        since := e.since; outcome := e.outcome; twin := ''; answered := false; payload := e.payload;
        RETURN;
    END IF;

    -- Held. A queued entry is adopted by its own owner, but not by an attempt that was requeued: that one is over, and
    -- a packet of its claim that comes late must not start it again. Another owner may be told to replace it.
    IF (live AND NOT (e.state = 'queued' AND (
            (mine AND _state = 'running' AND e.requeued_by <> _attempt
                -- Nor by a message that has another name than the one on its way, by which it is to start.
                AND NOT (e.copy LIKE 'awaited:%' AND e.copy_until > now AND e.copy <> 'awaited:' || _copy))
            OR (NOT mine AND _replace_queued))))
       OR (known AND NOT unended AND NOT mine AND e.held_until > now) THEN
        publish := false; stamp := '';
        IF mine THEN
            IF e.state = 'queued' THEN
                publish := true;
            ELSIF _copy <> '' AND (e.copy_until <= now OR e.copy = _copy) THEN
                publish := true;
                -- Else it is not published yet: a name given now would outlive a worker that dies before it is. Or
                -- published, and perhaps dropped already in favour of a copy that was named meanwhile.
                IF _copy_for > 0 AND _stamp = e.token || ':' || e.copy_until THEN
                    e.copy := _copy;
                    e.copy_until := now + _copy_for;
                    PERFORM taskguard.save_1(e);
                END IF;
                stamp := e.token || ':' || e.copy_until;
            END IF;
        ELSIF e.state = 'queued' AND _copy_for > 0 THEN
            IF e.copy_until = 0 OR e.copy = _attempt THEN    -- not published yet; or asked again, the reply was lost
                publish := true;
            ELSIF e.copy_until <= now AND e.copies <= 3 THEN                        -- MOST_COPIES
                publish := true;
                e.copy_until := now + _copy_for * (1 << e.copies);
                e.copy := _attempt;
                e.copies := e.copies + 1;
                PERFORM taskguard.save_1(e);
            END IF;
        END IF;
        IF _skip AND NOT mine AND e.state <> 'queued' THEN
            PERFORM taskguard.save_receipt_1(
                _namespace, _key, _owner, _attempt, 'skipped', e.token, now, now + _keep_for, NULL, e.owner, false);
        END IF;
        -- Who finds an entry queued may mark it; with the attempt of a running one a bystander could end its lease.
        answer := 'held'; owner := e.owner; token := e.token; state := e.state;
        attempt := CASE WHEN e.state = 'queued' THEN e.attempt ELSE '' END;
        since := e.since; payload := e.payload;
        remaining := CASE WHEN unended THEN e.until ELSE e.held_until END - now;
        RETURN;
    END IF;

    -- Granted. An entry that is over leaves nothing behind.
    IF NOT known THEN
        e.state := 'free'; e.token := 0; e.deaths := '[]'; e.label := '';
    END IF;
    IF NOT (unended AND mine) THEN
        e.requeued_by := '';
    END IF;
    SELECT coalesce(jsonb_agg(death ORDER BY place), '[]') INTO others
        FROM jsonb_array_elements(e.deaths) WITH ORDINALITY AS died (death, place)
        WHERE death ->> 0 NOT IN (_owner, e.owner);
    IF unended AND NOT mine AND e.starts > 0 THEN
        others := others || jsonb_build_array(jsonb_build_array(e.owner, e.starts, e.payload));
    END IF;
    WHILE jsonb_array_length(others) > 8 LOOP                                       -- DEATHS_REMEMBERED
        others := others - 0;
    END LOOP;
    IF NOT (unended AND mine) THEN
        e.starts := coalesce((SELECT (death ->> 1)::integer FROM jsonb_array_elements(e.deaths) AS died (death)
                              WHERE death ->> 0 = _owner), 0);
    END IF;
    IF _state = 'running' THEN
        e.starts := e.starts + 1;
    END IF;
    e.deaths := others;
    e.took_over := e.state = 'running';
    e.state := _state;
    e.owner := _owner;
    e.attempt := _attempt;
    -- Seeded by the clock: the tables may be emptied or dropped, and tokens still only rise.
    e.token := greatest(e.token + 1, _floor + 1, now);
    e.since := now;
    e.until := now + _lease;
    e.keep := _keep_for;
    e.payload := _payload;
    e.copy := ''; e.copies := 0; e.copy_until := 0;
    e.held_until := 0; e.how := NULL; e.outcome := NULL;
    e.label := CASE WHEN _label <> '' THEN _label ELSE e.label END;
    e.whereabouts := _where;
    PERFORM taskguard.save_2(e);
    answer := 'lease'; owner := e.owner; attempt := e.attempt; token := e.token; state := e.state;
    starts := e.starts; took_over := e.took_over;
END $$;


-- Lease number n is (_keys[n], _owners[n], _attempts[n], _tokens[n]) and is renewed for _periods[n]. Returns one answer
-- for each, in the same order.
CREATE OR REPLACE FUNCTION taskguard.renew_1(
    _namespace text, _keys text[], _owners text[], _attempts text[], _tokens bigint[], _periods bigint[]
) RETURNS boolean[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint;
    answers boolean[] := '{}';
BEGIN
    -- One order for everybody, so that two renewals never wait for each other. No row is made for a key that has none:
    -- there is nothing to renew.
    PERFORM 1 FROM taskguard.entry WHERE namespace = _namespace AND key = ANY (_keys) ORDER BY key FOR UPDATE;
    now := taskguard.now_1();
    FOR n IN 1 .. cardinality(_keys) LOOP
        UPDATE taskguard.entry AS e SET until = now + _periods[n]
            WHERE e.namespace = _namespace AND e.key = _keys[n] AND e.state = 'running' AND e.gone_at > now
            AND taskguard.is_newest_1(e, _owners[n], _attempts[n], _tokens[n]);
        answers := answers || FOUND;
    END LOOP;
    RETURN answers;
END $$;


CREATE OR REPLACE FUNCTION taskguard.requeue_2(
    _namespace text, _key text, _owner text, _attempt text, _token bigint,
    _period bigint, _copy_for bigint, _keep_starts boolean, _copy text
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry := taskguard.hold_1(_namespace, _key);
    now bigint := taskguard.now_1();
    own taskguard.receipt := taskguard.receipt_1(_namespace, _key, _owner, now);
BEGIN
    IF e.gone_at <= now THEN
        RETURN false;
    END IF;
    IF e.state NOT IN ('queued', 'running') OR NOT taskguard.is_newest_1(e, _owner, _attempt, _token) THEN
        IF _attempt = '' OR e.owner <> _owner OR e.requeued_by <> _attempt THEN
            RETURN false;
        END IF;
        IF _copy = '' AND e.state = 'queued' AND e.copy LIKE 'awaited:%' THEN
            e.copy := '';  -- the message that was named did not leave
            PERFORM taskguard.save_1(e);
        END IF;
        RETURN true;
    END IF;
    e.requeued_by := _attempt;
    e.attempt := '';
    IF own.how <> 'released' THEN
        -- It was revoked at another worker meanwhile: nobody will run it, so nobody is to wait for it.
        PERFORM taskguard.save_1(taskguard.ended_1(e, 'free', own.how, e.keep, 0, NULL, now));
        UPDATE taskguard.receipt SET until = greatest(until, now + e.keep)
            WHERE namespace = _namespace AND key = _key AND owner = _owner;
        RETURN true;
    END IF;
    IF e.state = 'running' THEN
        e.since := now;
        e.starts := CASE WHEN _keep_starts THEN e.starts ELSE 0 END;
    END IF;
    e.state := 'queued';
    e.until := now + _period;
    e.copy := CASE WHEN _copy <> '' THEN 'awaited:' || _copy ELSE '' END;                        -- AWAITED
    e.copies := 1; e.copy_until := now + _copy_for;
    PERFORM taskguard.save_1(e);
    RETURN true;
END $$;


-- The requeue of many queued entries, passed as for renew_1; a running entry does not change. One answer for each.
CREATE OR REPLACE FUNCTION taskguard.mark_2(
    _namespace text, _keys text[], _owners text[], _attempts text[], _tokens bigint[], _periods bigint[],
    _copy_for bigint
) RETURNS boolean[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry;
    held text[];
    answers boolean[] := '{}';
BEGIN
    -- In the one order, as renewals do. What has no row by now was not there to be marked.
    SELECT array_agg(key) INTO held FROM (
        SELECT key FROM taskguard.entry WHERE namespace = _namespace AND key = ANY (_keys) ORDER BY key FOR UPDATE
    ) AS rows;
    FOR n IN 1 .. cardinality(_keys) LOOP
        SELECT * INTO e FROM taskguard.entry WHERE namespace = _namespace AND key = _keys[n] AND key = ANY (held);
        answers := answers || CASE
            WHEN NOT FOUND THEN false
            WHEN e.state = 'running' AND taskguard.is_newest_1(e, _owners[n], _attempts[n], _tokens[n]) THEN false
            ELSE taskguard.requeue_2(
                _namespace, _keys[n], _owners[n], _attempts[n], _tokens[n], _periods[n], _copy_for, true, '')
        END;
    END LOOP;
    RETURN answers;
END $$;


-- complete: _state is 'done'. release: _state is 'free'; _anyway if the job ends here whoever holds the key.
CREATE OR REPLACE FUNCTION taskguard.end_2(
    _namespace text, _key text, _owner text, _attempt text, _token bigint, _state text, _anyway boolean,
    _how text, _keep_for bigint, _linger bigint, _outcome bytea, _answered boolean, _repeat_for bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry := taskguard.hold_1(_namespace, _key);
    now bigint := taskguard.now_1();
    known boolean := e.gone_at > now;
    own taskguard.receipt := taskguard.receipt_1(_namespace, _key, _owner, now);
    ends boolean := known AND (
        (taskguard.is_newest_1(e, _owner, _attempt, _token)
            AND (e.state = 'running' OR (e.state = 'queued' AND _state = 'free')))
        OR (_anyway AND e.state = 'queued' AND e.owner = _owner));
BEGIN
    IF NOT ends AND NOT _anyway THEN
        -- Refused, unless this is what was done before and the reply was lost.
        IF own.attempt = _attempt AND _how IN (own.how, 'released') THEN
            UPDATE taskguard.receipt SET answered = true
                WHERE _answered AND NOT own.answered AND own.how = _how
                AND namespace = _namespace AND key = _key AND owner = _owner;
            RETURN true;
        END IF;
        RETURN false;
    END IF;
    IF ends THEN
        PERFORM taskguard.save_1(taskguard.ended_1(e, _state, _how, _keep_for, _linger, _outcome, now));
    END IF;
    IF own.how <> 'released' AND _state = 'free' AND (_anyway OR _how = 'released') THEN
        -- The end that the job had stays. A run of it that went on until now makes it last as long as after any other.
        UPDATE taskguard.receipt SET
            until = CASE WHEN ends THEN greatest(own.until, now + _keep_for) ELSE own.until END,
            attempt = CASE WHEN ends AND NOT _anyway THEN _attempt ELSE own.attempt END,  -- it is answered the same again
            answered = own.answered OR (_answered AND own.how = _how)                     -- whoever it was that ended it
            WHERE (ends OR (_answered AND own.how = _how))
            AND namespace = _namespace AND key = _key AND owner = _owner;
        RETURN true;
    END IF;
    PERFORM taskguard.save_receipt_1(
        _namespace, _key, _owner,
        -- A plain release of the attempt before may be asked for again; one "anyway" is answered the same in any case.
        CASE WHEN _anyway THEN coalesce(own.attempt, _attempt) ELSE _attempt END,
        _how, CASE WHEN ends THEN e.token ELSE 0 END, now,
        now + CASE WHEN _how = 'released'
            THEN greatest(least(_keep_for, 60000000), _repeat_for)                  -- RELEASE_MEMORY
            ELSE _keep_for END,
        _outcome, '', _answered);
    RETURN true;
END $$;


-- _token 0: any token. Receipts stay.
CREATE OR REPLACE FUNCTION taskguard.forget_1(_namespace text, _key text, _token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e taskguard.entry := taskguard.hold_1(_namespace, _key);
    now bigint := taskguard.now_1();
BEGIN
    IF e.gone_at <= now OR _token NOT IN (0, e.token) THEN
        RETURN false;
    END IF;
    UPDATE taskguard.entry SET
        since = now, until = now + keep, state = DEFAULT, owner = DEFAULT, attempt = DEFAULT, starts = DEFAULT,
        took_over = DEFAULT, payload = DEFAULT, copy = DEFAULT, copies = DEFAULT, copy_until = DEFAULT,
        held_until = DEFAULT, requeued_by = DEFAULT, deaths = DEFAULT, how = DEFAULT, outcome = DEFAULT
    WHERE namespace = _namespace AND key = _key;
    RETURN true;
END $$;


-- Delete some expired rows, in all namespaces. It waits for no lock: it leaves rows that are in use for the next purge.
CREATE OR REPLACE FUNCTION taskguard.purge_1(_at_most integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint := taskguard.now_1();
BEGIN
    WITH over AS MATERIALIZED (
        SELECT namespace, key FROM taskguard.entry WHERE gone_at <= now
        ORDER BY gone_at LIMIT _at_most FOR UPDATE SKIP LOCKED
    ) DELETE FROM taskguard.entry AS e USING over AS o WHERE e.namespace = o.namespace AND e.key = o.key;
    WITH over AS MATERIALIZED (
        SELECT namespace, key, owner FROM taskguard.receipt WHERE until <= now
        ORDER BY until LIMIT _at_most FOR UPDATE SKIP LOCKED
    ) DELETE FROM taskguard.receipt AS r USING over AS o
        WHERE r.namespace = o.namespace AND r.key = o.key AND r.owner = o.owner;
END $$;


-- Line number n is (_keys[n], _texts[n], _notables[n]) and is _ages[n] old. _keep 0: do not trim this time.
CREATE OR REPLACE FUNCTION taskguard.add_history_1(
    _namespace text, _keys text[], _texts text[], _notables boolean[], _ages bigint[], _keep integer, _keep_for bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint := taskguard.now_1();
    log boolean;
    too_old bigint;
BEGIN
    -- A log need not wait for the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO taskguard.history (namespace, notable, at, key, text)
        SELECT _namespace, line.notable, now - line.age, line.key, line.text
        FROM unnest(_keys, _texts, _notables, _ages) WITH ORDINALITY AS line (key, text, notable, age, place)
        ORDER BY line.place;
    IF _keep > 0 THEN
        FOREACH log IN ARRAY ARRAY[false, true] LOOP
            SELECT id INTO too_old FROM taskguard.history WHERE namespace = _namespace AND notable = log
                ORDER BY id DESC LIMIT 1 OFFSET _keep;
            -- What another one is removing is left to that one.
            DELETE FROM taskguard.history WHERE id IN (
                SELECT id FROM taskguard.history
                WHERE namespace = _namespace AND notable = log AND (id <= too_old OR at < now - _keep_for)
                FOR UPDATE SKIP LOCKED);
        END LOOP;
    END IF;
END $$;
