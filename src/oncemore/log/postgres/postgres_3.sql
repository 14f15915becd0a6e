-- Format 3: a fast path for most appends; `append` remains for the rest, and returns conflicts.
-- {schema} and {tag} are filled in when it is run, as in `postgres.sql`.

-- Both functions compare and set as `append` does, and take the log in the same order: shared, then
-- the number below which none will be drawn, then numbers. A batch that cannot be stored (its entity or guard
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

revoke all on function {schema}.put_one from public;
revoke all on function {schema}.put_many from public;

-- Roles that may call `append` may call these too.
do $$
declare
    who text;
begin
    for who in select case a.grantee when 0 then 'public' else quote_ident(r.rolname) end
        from pg_proc p cross join aclexplode(p.proacl) a left join pg_roles r on r.oid = a.grantee
        where p.pronamespace = '{schema}'::regnamespace and p.proname = 'append'
            and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
    loop
        execute 'grant execute on function {schema}.put_one, {schema}.put_many to ' || who;
    end loop;
end$$;
