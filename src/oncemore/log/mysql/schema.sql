-- The tables and procedures of one log in MySQL or MariaDB; see `log/mysql/store.py` for their use.
-- {prefix} is filled in when it is run. A statement that defines a table or procedure commits by itself, so each is
-- written to be run again: a process that died in the middle left no format in {prefix}_meta.

-- Text is stored as the bytes of its UTF-8 form: the collations of servers ignore case or trailing spaces, and the
-- exact ones have different names in MySQL and MariaDB.

create table if not exists {prefix}_meta(
    name varbinary(100) primary key, value varbinary(1000) not null) engine = InnoDB row_format = dynamic;

create table if not exists {prefix}_head(
    entity varbinary(2000) primary key, version bigint not null, hash varbinary(64) not null,
    head longblob not null, kind varbinary(100) not null, state varbinary(100) not null, due double,
    step varbinary(1000) not null, worker varbinary(1000) not null, dataset varbinary(1000) not null,
    seq bigint not null,
    index {prefix}_head_due (kind, due), index {prefix}_head_step (kind, step, due))
    engine = InnoDB row_format = dynamic;

create table if not exists {prefix}_log(
    seq bigint primary key, entity varbinary(2000) not null, version bigint not null,
    hash varbinary(64) not null, header longblob not null, body longblob, digest varbinary(64),
    unique index {prefix}_log_entity (entity, version)) engine = InnoDB row_format = dynamic;

-- last_seq     the last sequence number; an append locks this row first, and holds it until its commit
-- synced_seq   the entries up to this one are known to be on disk
-- flushes      changed by a transaction whose only purpose is its commit
create table if not exists {prefix}_counter(
    name varbinary(20) primary key, value bigint not null) engine = InnoDB row_format = dynamic;
insert ignore into {prefix}_counter values ('last_seq', 0), ('synced_seq', 0), ('flushes', 0);

create table if not exists {prefix}_worker(
    name varbinary(1000) primary key, token varbinary(100) not null, entered datetime(6) not null,
    left_at datetime(6)) engine = InnoDB row_format = dynamic;

-- An append is `take_log`, then for each batch either one `put_one`, or the `check_version` of all its guards and
-- writes, the `put` of all its writes, and `end_batch`. All of it is sent at once, between `start transaction` and
-- `commit`. The variables @oncemore_* carry what one procedure leaves for the next:
--   item     number of entities that the batch has compared so far
--   missed   the item that had another version; 0: none
--   last     the last sequence number that the batch drew; 0: none
--   answers  one number for each batch: `last`, or -`missed`

drop procedure if exists {prefix}_take_log;
create procedure {prefix}_take_log(synced bigint)
begin
    declare ignored bigint;
    select value into ignored from {prefix}_counter where name = 'last_seq' for update;
    if synced > 0 then
        update {prefix}_counter set value = greatest(value, synced) where name = 'synced_seq';
    end if;
    set @oncemore_item = 0, @oncemore_missed = 0, @oncemore_last = 0, @oncemore_answers = '';
end;

drop procedure if exists {prefix}_check_version;
create procedure {prefix}_check_version(e varbinary(2000), x bigint)
begin
    set @oncemore_item = @oncemore_item + 1;
    -- A locking read, because that reads the last committed version at every isolation level.
    if @oncemore_missed = 0 and x <> coalesce(
        (select version from {prefix}_head where entity = e for update), 0) then
        set @oncemore_missed = @oncemore_item;
    end if;
end;

drop procedure if exists {prefix}_put;
create procedure {prefix}_put(
    e varbinary(2000), x bigint, h varbinary(64), hd longblob, b longblob, st longblob, k varbinary(100),
    s varbinary(100), d double, sp varbinary(1000), w varbinary(1000), ds varbinary(1000))
begin
    if @oncemore_missed = 0 then
        update {prefix}_counter set value = last_insert_id(value + 1) where name = 'last_seq';
        set @oncemore_last = last_insert_id();
        if x = 0 then
            insert into {prefix}_head values (e, 1, h, st, k, s, d, sp, w, ds, @oncemore_last);
        else
            update {prefix}_head set version = x + 1, hash = h, head = st, kind = k, state = s, due = d,
                step = sp, worker = w, dataset = ds, seq = @oncemore_last where entity = e and version = x;
            if row_count() <> 1 then
                signal sqlstate '45000' set message_text = 'a head was not compared before it was written';
            end if;
        end if;
        insert into {prefix}_log values (@oncemore_last, e, x + 1, h, hd, b, null);
    end if;
end;

drop procedure if exists {prefix}_end_batch;
create procedure {prefix}_end_batch()
begin
    set @oncemore_answers = concat(@oncemore_answers, ' ',
        if(@oncemore_missed = 0, @oncemore_last, -@oncemore_missed));
    set @oncemore_item = 0, @oncemore_missed = 0, @oncemore_last = 0;
end;

-- A batch of one write, with one guard (ge at gx) or none (null): `check_version`, `put` and `end_batch` in one, because
-- each call of a procedure costs the server about as much as a small query.
drop procedure if exists {prefix}_put_one;
create procedure {prefix}_put_one(
    e varbinary(2000), x bigint, h varbinary(64), hd longblob, b longblob, st longblob, k varbinary(100),
    s varbinary(100), d double, sp varbinary(1000), w varbinary(1000), ds varbinary(1000),
    ge varbinary(2000), gx bigint)
begin
    declare answer bigint;
    if ge is not null and gx <> coalesce((select version from {prefix}_head where entity = ge for update), 0) then
        set answer = -1;
    elseif x <> coalesce((select version from {prefix}_head where entity = e for update), 0) then
        set answer = if(ge is null, -1, -2);
    else
        call {prefix}_put(e, x, h, hd, b, st, k, s, d, sp, w, ds);
        set answer = @oncemore_last;
    end if;
    set @oncemore_answers = concat(@oncemore_answers, ' ', answer), @oncemore_last = 0;
end;

-- An append of one such batch, which is most of them, as one statement.
drop procedure if exists {prefix}_append_one;
create procedure {prefix}_append_one(
    synced bigint, e varbinary(2000), x bigint, h varbinary(64), hd longblob, b longblob, st longblob,
    k varbinary(100), s varbinary(100), d double, sp varbinary(1000), w varbinary(1000), ds varbinary(1000),
    ge varbinary(2000), gx bigint)
begin
    start transaction;
    call {prefix}_take_log(synced);
    call {prefix}_put_one(e, x, h, hd, b, st, k, s, d, sp, w, ds, ge, gx);
    commit;
    select @oncemore_answers;
end;

-- Write something and commit it: everything that was visible before is on disk when this returns.
drop procedure if exists {prefix}_flush;
create procedure {prefix}_flush()
begin
    update {prefix}_counter set value = value + 1 where name = 'flushes';
end;

drop procedure if exists {prefix}_prune;
create procedure {prefix}_prune(e varbinary(2000), before_version bigint)
begin
    update {prefix}_log set digest = unhex(sha2(body, 256)), body = null
        where entity = e and version < before_version and body is not null;
end;

-- Register a worker (here) or unregister it, by the token of its registration. Rows older than a week are deleted.
drop procedure if exists {prefix}_presence;
create procedure {prefix}_presence(who varbinary(1000), with_token varbinary(100), here bool)
begin
    if here then
        delete from {prefix}_worker where coalesce(left_at, entered) < utc_timestamp(6) - interval 7 day;
        insert into {prefix}_worker values (who, with_token, utc_timestamp(6), null)
            on duplicate key update token = with_token, entered = utc_timestamp(6), left_at = null;
    else
        update {prefix}_worker set left_at = utc_timestamp(6) where name = who and token = with_token;
    end if;
end;
