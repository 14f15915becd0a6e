-- Format 2: an append costs the server half as much as in format 1, with the same results.
-- {schema} and {tag} are filled in when it is run, as in `postgres.sql`; replaced functions keep their grants.

-- `append` now does the work of these two, in one query that the server plans once for each session: it plans
-- the queries of a function in SQL at each call, and copies arrays from function to function.
drop function {schema}.take_log(text[], text[]);
drop function {schema}.needs_all(text[], text[]);

-- Compare and set the batches 1..members, each by itself; one row each. The writes are parallel arrays in
-- the order of their batch (m), as are the guards (gm); x and gx are the expected versions.
-- A plan made while a table was small would scan it when it is large: hence no sequential scans. They then
-- seem very expensive where there is no other plan (alive), and would be compiled: hence no jit.
create or replace function {schema}.append(
    members int, m int[], e text[], x bigint[], h bytea[], hd bytea[], b bytea[], st bytea[],
    k text[], s text[], d float8[], sp text[], w text[], ds text[],
    gm int[], ge text[], gx bigint[], sync bool)
returns table(
    missed text, seqs bigint[], entity text, version bigint, hash bytea, head bytea, kind text, state text,
    due float8, step text, worker text, dataset text, seq bigint, body bytea)
language plpgsql volatile security definer
set search_path = {schema}, pg_temp set enable_seqscan = off set jit = off set lock_timeout = '30s' as $$
#variable_conflict use_column
declare
    n int := cardinality(e); i int := 1; j int; q int := 1; v bigint; at bigint; alone bool;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'oncemore appends in read committed only' using errcode = '0A000';
    end if;
    if not sync then
        perform set_config('synchronous_commit', 'off', true);
    elsif current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    -- Take the log: shared, or exclusively if this writes or adds a guard. The queue for an advisory lock is
    -- fair, so that a stream of shared locks cannot starve an exclusive one, as shared row locks could. Publish
    -- the number below which this append will draw none: see last_seq(). An append that finds that it needs the
    -- log exclusively ends the block by an error, to release its locks, and queues again. A lock in the
    -- condition of an `if` needs no query, unlike `perform`.
    begin
        if pg_advisory_xact_lock_shared({tag}, 1) is null then end if;
        select pg_advisory_xact_lock_shared(({tag}::bigint << 44) | (last_value + is_called::int))::text is null
            or exists (select from guarded where entity = any(e))
            or (cardinality(ge) > 0
                and exists (select from unnest(ge) g where not exists (select from guarded where entity = g)))
            or not exists (select from alive)
            from seq into alone;
        if alone then raise exception 'alone' using errcode = 'OM001'; end if;
    exception when sqlstate 'OM001' then
    end;
    if alone then
        if pg_advisory_xact_lock({tag}, 1) is null then end if;
        insert into guarded select distinct unnest(ge) on conflict do nothing;
        if not exists (select from alive) then
            perform setval('seq', last_value + 1000000) from seq;
            insert into alive values (1);
        end if;
        perform pg_advisory_xact_lock_shared(({tag}::bigint << 44) | (last_value + is_called::int)) from seq;
    end if;
    if n > members then  -- batches of several writes: lock in one order, or two appends deadlock
        perform from head where entity = any(e) order by entity for update;
    end if;
    for a in 1..members loop
        missed := null; seqs := '{{}}';
        while gm[q] = a loop
            if missed is null
                and coalesce((select version from head where entity = ge[q]), 0) <> gx[q] then
                missed := ge[q];
            end if;
            q := q + 1;
        end loop;
        j := i;
        while m[j] = a loop
            if missed is null and n > members then  -- else each write is its own comparison, below
                select version into v from head where entity = e[j] for update;
                if coalesce(v, 0) <> x[j] then missed := e[j]; end if;
            end if;
            j := j + 1;
        end loop;
        if missed is null then for o in i .. j - 1 loop
            at := nextval('seq');
            if x[o] = 0 then
                insert into head values (e[o], 1, h[o], st[o], k[o], s[o], d[o], sp[o], w[o], ds[o], at)
                    on conflict do nothing;
            else
                update head set version = x[o] + 1, hash = h[o], head = st[o], kind = k[o], state = s[o],
                    due = d[o], step = sp[o], worker = w[o], dataset = ds[o], seq = at
                    where entity = e[o] and version = x[o];
            end if;
            if not found then  -- another append created it meanwhile
                if o > i then raise exception 'half a batch' using errcode = '40001'; end if;
                missed := e[o];
                exit;
            end if;
            insert into log values (at, e[o], x[o] + 1, h[o], hd[o], b[o], null);
            seqs := seqs || at;
        end loop; end if;
        i := j;
        entity := null; version := null; hash := null; head := null; kind := null; state := null;
        due := null; step := null; worker := null; dataset := null; seq := null; body := null;
        if missed is not null then
            select c.entity, c.version, c.hash, c.head, c.kind, c.state, c.due, c.step, c.worker, c.dataset,
                c.seq, l.body
                into entity, version, hash, head, kind, state, due, step, worker, dataset, seq, body
                from head c join log l on l.entity = c.entity and l.version = c.version
                where c.entity = missed;
        end if;
        return next;
    end loop;
end$$;
