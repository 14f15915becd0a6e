-- The tables and functions of one log in PostgreSQL; see `log/postgres/store.py` for their use.
-- {schema} and {tag} (19 bits of the hash of the schema's name, for the keys of locks) are filled in when it is run.

create table {schema}.meta(name text primary key, value text not null);

create table {schema}.head(
    entity text collate "C" primary key, version bigint not null, hash bytea not null, head bytea not null,
    kind text collate "C" not null, state text not null, due float8, step text not null,
    worker text not null, dataset text not null, seq bigint not null)
    with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
create index head_due on {schema}.head(kind, due) where due is not null;
create index head_step on {schema}.head(kind, step, due, entity) where due is not null;

create table {schema}.log(
    seq bigint not null unique, entity text collate "C" not null, version bigint not null,
    hash bytea not null, header bytea not null, body bytea, digest bytea,
    primary key (entity, version));
create sequence {schema}.seq;

-- Entities that were ever a guard: an append that writes one of them takes the log exclusively.
create table {schema}.guarded(entity text collate "C" primary key);

-- Emptied by the server's recovery from a crash: it may have lost sequence numbers that a reader has seen.
create unlogged table {schema}.alive(one int not null);
insert into {schema}.alive values (1);

create table {schema}.worker(
    name text collate "C" primary key, token text not null, entered timestamptz not null,
    left_at timestamptz);

-- The server plans the query of a plpgsql function once for each session; it would plan a function in SQL at each
-- call, and copy arrays from function to function. So `append` is one function, not several.

-- Compare and set the batches 1..members, each by itself; one row each. The writes are parallel arrays in
-- the order of their batch (m), as are the guards (gm); x and gx are the expected versions.
-- A plan made while a table was small would scan it when it is large: hence no sequential scans. They then
-- seem very expensive where there is no other plan (alive), and would be compiled: hence no jit.
create function {schema}.append(
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

-- `put_one` and `put_many` are the fast path of most appends. Both compare and set as `append` does, and take
-- the log in the same order: shared, then the number below which none will be drawn, then numbers. A batch that cannot be stored (its entity or guard
-- is not as expected, or it needs the log exclusively) is skipped: the caller then calls `append` for it.
-- Each write with its entry is one statement: that costs less than two. `jit` and `lock_timeout` are set by
-- the session: a setting costs a function as much as a small query each time it is called.

-- One batch of one write, with one guard (ge at gx) or none (null). Returns its number; null: not stored.
create function {schema}.put_one(
    e text, x bigint, h bytea, hd bytea, b bytea, st bytea, k text, s text, d float8, sp text, w text, ds text,
    ge text, gx bigint, sync bool)
returns bigint language plpgsql volatile security definer
set search_path = {schema}, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at bigint; refused bool;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'oncemore appends in read committed only' using errcode = '0A000';
    end if;
    if not sync then
        perform set_config('synchronous_commit', 'off', true);
    elsif current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if pg_advisory_xact_lock_shared({tag}, 1) is null then end if;
    select pg_advisory_xact_lock_shared(({tag}::bigint << 44) | (last_value + is_called::int))::text is null
        or exists (select from guarded where entity = e)
        or (ge is not null and (not exists (select from guarded where entity = ge)
            or coalesce((select version from head where entity = ge), 0) <> gx))
        or not exists (select from alive)
        from seq into refused;
    if refused then return null; end if;
    at := nextval('seq');
    if x = 0 then
        with made as (
            insert into head values (e, 1, h, st, k, s, d, sp, w, ds, at) on conflict do nothing returning 1)
        insert into log select at, e, 1, h, hd, b, null from made;
    else
        with moved as (
            update head set version = x + 1, hash = h, head = st, kind = k, state = s, due = d, step = sp,
                worker = w, dataset = ds, seq = at where entity = e and version = x returning 1)
        insert into log select at, e, x + 1, h, hd, b, null from moved;
    end if;
    return case when found then at end;
end$$;

-- Batches of one write each; some of them (g) have the same guard. Returns their numbers, in order; 0: not
-- stored. They come in the order of entities, so that two calls do not deadlock: new heads are inserted before
-- existing ones are updated, and each in that order.
create function {schema}.put_many(
    e text[], x bigint[], h bytea[], hd bytea[], b bytea[], st bytea[], k text[], s text[], d float8[],
    sp text[], w text[], ds text[], g bool[], ge text, gx bigint, sync bool)
returns bigint[] language plpgsql volatile security definer
set search_path = {schema}, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    refused bool; held bool; numbers bigint[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'oncemore appends in read committed only' using errcode = '0A000';
    end if;
    if not sync then
        perform set_config('synchronous_commit', 'off', true);
    elsif current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if pg_advisory_xact_lock_shared({tag}, 1) is null then end if;
    select pg_advisory_xact_lock_shared(({tag}::bigint << 44) | (last_value + is_called::int))::text is null
        or exists (select from guarded where entity = any(e))
        or (ge is not null and not exists (select from guarded where entity = ge))
        or not exists (select from alive),
        ge is null or coalesce((select version from head where entity = ge), 0) = gx
        from seq into refused, held;
    if refused then return array_fill(0::bigint, array[cardinality(e)]); end if;
    with asked as materialized (
        select nextval('seq') at, u.* from unnest(e, x, h, hd, b, st, k, s, d, sp, w, ds, g)
            with ordinality u(e, x, h, hd, b, st, k, s, d, sp, w, ds, g, o) where held or not u.g),
    made as (
        insert into head select a.e, 1, a.h, a.st, a.k, a.s, a.d, a.sp, a.w, a.ds, a.at
            from asked a where a.x = 0 on conflict do nothing returning seq),
    moved as (
        update head set version = a.x + 1, hash = a.h, head = a.st, kind = a.k, state = a.s, due = a.d,
            step = a.sp, worker = a.w, dataset = a.ds, seq = a.at
            from asked a where head.entity = a.e and head.version = a.x and a.x > 0 returning head.seq),
    logged as (
        insert into log select a.at, a.e, a.x + 1, a.h, a.hd, a.b, null from asked a
            where a.at in (select seq from made union all select seq from moved) returning seq, entity)
    select array_agg(coalesce(a.at, 0) order by n) into numbers
        from generate_series(1, cardinality(e)) n
        left join (select asked.at, asked.o from asked join logged on logged.seq = asked.at) a on a.o = n;
    return numbers;
end$$;

-- The last seq that a reader may continue from: nothing becomes visible at or below it later. Numbers are drawn
-- before they are committed, so it is below the lowest number of a running append. The order of the queries is
-- the proof: a number drawn before the first query is held at the second, or visible at the third.
create function {schema}.last_seq() returns bigint
language plpgsql volatile security definer set search_path = {schema}, pg_temp set jit = off as $$
declare
    next bigint; low bigint;
begin
    select last_value + is_called::int into next from seq;
    select min(((classid::bigint & 4095) << 32) | objid::bigint) into low from pg_locks
        where locktype = 'advisory' and objsubid = 1 and classid::bigint >> 12 = {tag}
            and database = (select oid from pg_database where datname = current_database());
    return coalesce((select max(l.seq) from log l where l.seq < least(next, low)), 0);
end$$;

create function {schema}.prune(of text, before bigint) returns void
language sql volatile security definer set search_path = {schema}, pg_temp as $$
    update log set digest = sha256(body), body = null
        where entity = of and version < before and body is not null;
$$;

-- Register a worker (here) or unregister it, by the token of its registration. Rows older than a week are deleted.
create function {schema}.presence(who text, with_token text, here bool) returns void
language plpgsql volatile security definer set search_path = {schema}, pg_temp as $$
begin
    if here then
        delete from worker where coalesce(left_at, entered) < clock_timestamp() - interval '7 days';
        insert into worker values (who, with_token, clock_timestamp())
            on conflict (name) do update set token = with_token, entered = clock_timestamp(), left_at = null;
    else
        update worker set left_at = clock_timestamp() where name = who and token = with_token;
    end if;
end$$;

revoke all on all functions in schema {schema} from public;
