//! Captures that are drawn by code, and what comes of them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use split::drawn::{self, Drawing, DrawnPacket, LineId};
use split::{CaptureFile, Counter, Outcome, Part, Roles, Split, Splitter, TracedGuest, Unknown};

const CLIENT: &str = "10.0.0.9:40000";
const WEB: &str = "10.0.0.2:80";
const WEB_TO_DB: &str = "10.0.0.2:50000";
const PG: &str = "10.0.0.3:5432";
const MYSQL: &str = "10.0.0.3:3306";

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn split(packets: &[DrawnPacket]) -> Split {
    split_with(Roles::default(), packets)
}

fn split_with(roles: Roles, packets: &[DrawnPacket]) -> Split {
    let mut splitter = Splitter::new(roles);
    for drawn in packets {
        splitter.packet(&drawn.packet());
    }
    splitter.finish()
}

/// Per request: its target, and the parts in microseconds with the number of queries, or why there are none.
fn shown(split: &Split) -> Vec<String> {
    let show = |request: &split::Request| {
        let whole = request.turnaround_ns() / 1000;
        let parts = match &request.outcome {
            Outcome::Known(parts) => {
                let us: Vec<String> = Part::ALL
                    .iter()
                    .filter(|part| 0 < parts.ns(**part))
                    .map(|part| format!("{} {}", part.name(), parts.ns(*part) / 1000))
                    .collect();
                assert_eq!(Part::ALL.iter().map(|part| parts.ns(*part)).sum::<u64>() / 1000, whole);
                format!("{}, {} queries", us.join(" "), parts.queries())
            }
            Outcome::Unknown(why) => why.key().to_owned(),
        };
        format!("{} {}: {whole} = {parts}", &*request.target, request.status)
    };
    split.requests.iter().map(show).collect()
}

fn check(drawing: Drawing, expected: &[&str]) -> Split {
    let split = split(&drawing.in_order());
    assert_eq!(shown(&split), expected, "{:?}", seen(&split));
    split
}

/// What was counted.
fn seen(split: &Split) -> Vec<String> {
    split.counts.iter().filter(|c| c.2 != 0).map(|(key, _, n)| format!("{key} {n}")).collect()
}

/// A session with the database, ready for queries at microsecond `us + 5`.
fn pg_session(drawing: &mut Drawing, us: u64, client: &str) -> LineId {
    let line = drawing.open(us, client, PG);
    drawing.client(line, us + 2, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
    drawing.server(
        line,
        us + 5,
        &[drawn::pg(b'R', &[0; 4]), drawn::pg(b'S', b"a\0b\0"), ready(b'I')].concat(),
    );
    line
}

fn ready(status: u8) -> Vec<u8> {
    drawn::pg(b'Z', &[status])
}

fn pg_query(drawing: &mut Drawing, line: LineId, from: u64, to: u64, status: u8) {
    drawing.client(line, from, &drawn::pg(b'Q', b"select 1\0"));
    let row = drawn::pg(b'D', b"\0\x01\0\0\0\x011");
    let answer = [drawn::pg(b'T', b"\0\0"), row, drawn::pg(b'C', b"SELECT 1\0"), ready(status)];
    drawing.server(line, to, &answer.concat());
}

fn mysql_session(drawing: &mut Drawing, us: u64, client: &str) -> LineId {
    let line = drawing.open(us, client, MYSQL);
    drawing.server(line, us + 2, &drawn::mysql_greeting());
    drawing.client(line, us + 3, &drawn::mysql_login(0));
    drawing.server(line, us + 5, &drawn::mysql_ok(2, 2));
    line
}

fn mysql_query(drawing: &mut Drawing, line: LineId, from: u64, to: u64, status: u8) {
    drawing.client(line, from, &drawn::mysql(0, b"\x03select 1"));
    let eof = |number| drawn::mysql(number, &[0xfe, 0, 0, status, 0]);
    let column = drawn::mysql(2, b"\x03def");
    let rows = [drawn::mysql(1, &[1]), column, eof(3), drawn::mysql(4, b"\x011"), eof(5)];
    drawing.server(line, to, &rows.concat());
}

/// A request on a connection of its own.
fn request(drawing: &mut Drawing, port: u16, from: u64, to: u64) -> LineId {
    let line = drawing.open(from - 2, &format!("10.0.0.9:{port}"), WEB);
    drawing.client(
        line,
        from,
        &String::from_utf8_lossy(GET).replace("/a", &format!("/{port}")).into_bytes(),
    );
    drawing.server(line, to, OK);
    line
}

#[test]
fn two_queries_of_one_request() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 130, b'I');
    pg_query(&mut drawing, db, 150, 155, b'I');
    let split = check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 25 D-W-D 20 D-W-C 45, 2 queries"]);
    let Outcome::Known(parts) = &split.requests[0].outcome else { panic!() };
    assert_eq!(parts.times()[1].begin, drawn::at(110));
    assert_eq!(split.counts.get(Counter::ByTime), 2);
}

#[test]
fn the_same_with_mysql() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    mysql_query(&mut drawing, db, 110, 130, 2);
    mysql_query(&mut drawing, db, 150, 155, 2);
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 25 D-W-D 20 D-W-C 45, 2 queries"]);
}

#[test]
fn a_connection_that_is_opened_for_a_request_is_the_databases_time_but_for_passwords() {
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = drawing.open(110, WEB_TO_DB, PG);
    drawing.client(db, 112, &drawn::pg_startup(80_877_103, b""));
    drawing.server(db, 113, b"N");
    drawing.client(db, 113, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
    drawing.server(db, 120, &drawn::pg(b'R', &[0, 0, 0, 10, b'S', 0, 0]));
    drawing.client(db, 130, &drawn::pg(b'p', b"SCRAM"));
    drawing.server(db, 135, &[drawn::pg(b'R', &[0; 4]), ready(b'I')].concat());
    pg_query(&mut drawing, db, 140, 150, b'I');
    drawing.close(db, 160);
    // 110-111 the handshake, 112-120 up to the question for the password, 130-135, 140-150.
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 24 D-W-D 16 D-W-C 50, 1 queries"]);
}

#[test]
fn mysql_connections_are_the_servers_time_up_to_the_greeting_and_for_passwords() {
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = mysql_session(&mut drawing, 110, WEB_TO_DB);
    mysql_query(&mut drawing, db, 120, 140, 2);
    // 110-112, 113-115, 120-140.
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 24 D-W-D 6 D-W-C 60, 1 queries"]);
}

#[test]
fn extended_queries_with_sync_and_flush() {
    let prepare = [drawn::pg(b'P', b"s\0select $1\0\0\0"), drawn::pg(b'D', b"Ss\0")].concat();
    let execute = [drawn::pg(b'B', b"\0s\0\0\0\0\0\0\0"), drawn::pg(b'E', b"\0\0\0\0\0")].concat();
    let sync = drawn::pg(b'S', b"");
    let prepared = [drawn::pg(b'1', b""), drawn::pg(b't', b"\0\0"), drawn::pg(b'n', b"")].concat();
    let executed = [drawn::pg(b'2', b""), drawn::pg(b'C', b"SELECT 0\0")].concat();
    // With a Sync at the end only.
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, &[&prepare[..], &execute, &sync].concat());
    drawing.server(db, 130, &[&prepared[..], &executed, &ready(b'I')].concat());
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries"]);
    // With a Flush, after which the client thinks.
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, &[&prepare[..], &drawn::pg(b'H', b"")].concat());
    drawing.server(db, 120, &prepared);
    drawing.client(db, 150, &[&execute[..], &sync].concat());
    drawing.server(db, 155, &[&executed[..], &ready(b'I')].concat());
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 15 D-W-D 30 D-W-C 45, 1 queries"]);
    // Two groups that are sent without waiting, the first of which fails.
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, &[&execute[..], &sync, &execute, &sync].concat());
    drawing.server(db, 120, &[&drawn::pg(b'E', b"\0")[..], &ready(b'I')].concat());
    drawing.server(db, 140, &[&executed[..], &ready(b'I')].concat());
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 30 D-W-C 60, 2 queries"]);
}

#[test]
fn copy_in_and_out() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, &drawn::pg(b'Q', b"copy a from stdin\0"));
    drawing.server(db, 112, &drawn::pg(b'G', b"\0\0\0"));
    drawing.client(db, 115, &[drawn::pg(b'd', &[7; 5000]), drawn::pg(b'c', b"")].concat());
    drawing.server(db, 120, &[drawn::pg(b'C', b"COPY 1\0"), ready(b'I')].concat());
    drawing.client(db, 130, &drawn::pg(b'Q', b"copy a to stdout\0"));
    drawing.server(db, 131, &[drawn::pg(b'H', b"\0\0\0"), drawn::pg(b'd', &[7; 5000])].concat());
    drawing.server(
        db,
        140,
        &[drawn::pg(b'c', b""), drawn::pg(b'C', b"COPY 1\0"), ready(b'I')].concat(),
    );
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-D 10 D-W-C 60, 2 queries"]);
}

/// The server ignores the Sync that came before the rows; the client sends another one after them.
#[test]
fn copy_in_by_the_extended_protocol() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    let [parse, bind, execute, sync] = [
        drawn::pg(b'P', b"\0copy a from stdin\0\0\0"),
        drawn::pg(b'B', b"\0\0\0\0\0\0\0\0"),
        drawn::pg(b'E', b"\0\0\0\0\0"),
        drawn::pg(b'S', b""),
    ];
    drawing.client(db, 110, &[&parse[..], &bind, &execute, &sync].concat());
    let waits = [drawn::pg(b'1', b""), drawn::pg(b'2', b""), drawn::pg(b'G', b"\0\0\0")];
    drawing.server(db, 112, &waits.concat());
    drawing.client(db, 115, &[drawn::pg(b'd', &[7; 50]), drawn::pg(b'c', b""), sync].concat());
    drawing.server(db, 120, &[drawn::pg(b'C', b"COPY 1\0"), ready(b'I')].concat());
    pg_query(&mut drawing, db, 150, 160, b'I');
    pg_query(&mut drawing, db, 170, 180, b'I');
    check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 30 D-W-D 40 D-W-C 20, 3 queries"]);
}

#[test]
fn results_of_mysql() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 300);
    // Two result sets, the second later.
    drawing.client(db, 110, &drawn::mysql(0, b"\x03call two()"));
    drawing.server(db, 115, &drawn::mysql_ok(1, 2 | 8));
    drawing.server(db, 120, &drawn::mysql_ok(2, 2));
    // A prepared statement, and one that is closed, which has no answer.
    drawing.client(db, 130, &drawn::mysql(0, b"\x16select ?"));
    drawing.server(db, 135, &drawn::mysql(1, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    drawing.client(db, 140, &drawn::mysql(0, &[0x17, 1, 0, 0, 0, 0, 1, 0, 0, 0]));
    // So many rows that numbers begin again, and end where the next response begins.
    let rows: Vec<u8> =
        (1..=511_u32).flat_map(|n| drawn::mysql((n % 256) as u8, b"\x0212")).collect();
    drawing.server(db, 145, &rows);
    drawing.server(db, 150, &drawn::mysql(0, &[0xfe, 0, 0, 2, 0]));
    drawing.client(db, 155, &drawn::mysql(0, &[0x19, 1, 0, 0, 0]));
    mysql_query(&mut drawing, db, 160, 170, 2);
    // Rows of a file of the client's.
    drawing.client(db, 180, &drawn::mysql(0, b"\x03load data local"));
    drawing.server(db, 182, &drawn::mysql(1, b"\xfba.csv"));
    drawing.client(db, 185, &[drawn::mysql(2, b"1"), drawn::mysql(3, b"")].concat());
    drawing.server(db, 190, &drawn::mysql_ok(4, 2));
    mysql_query(&mut drawing, db, 200, 210, 2);
    // 10 + 5 + 10 + 10 + 10 + 10
    check(drawing, &["/1 200: 200 = C-W-D 10 W-D-W 55 D-W-D 45 D-W-C 90, 5 queries"]);
}

/// Numbers of its packets begin again after 255, where a command would begin, too.
#[test]
fn a_file_of_more_than_255_packets() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 300);
    drawing.client(db, 110, &drawn::mysql(0, b"\x03load data local"));
    drawing.server(db, 120, &drawn::mysql(1, b"\xfba.csv"));
    let rows: Vec<u8> =
        (2..600_u32).flat_map(|n| drawn::mysql((n % 256) as u8, b"\x03row")).collect();
    drawing.client(db, 130, &[&rows[..], &drawn::mysql((600 % 256) as u8, b"")].concat());
    drawing.server(db, 150, &drawn::mysql_ok((601 % 256) as u8, 2));
    mysql_query(&mut drawing, db, 200, 210, 2);
    let split = check(drawing, &["/1 200: 200 = C-W-D 10 W-D-W 50 D-W-D 50 D-W-C 90, 2 queries"]);
    assert_eq!(split.counts.get(Counter::LostMessages), 0);
}

/// A row whose first column is NULL begins as a question for a file does.
#[test]
fn a_null_in_a_row_asks_for_no_file() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 300);
    drawing.client(db, 110, &drawn::mysql(0, b"\x03select null"));
    let eof = |number| drawn::mysql(number, &[0xfe, 0, 0, 2, 0]);
    let rows = [drawn::mysql(1, &[1]), drawn::mysql(2, b"\x03def"), eof(3)];
    drawing.server(db, 115, &rows.concat());
    drawing.server(db, 120, &[drawn::mysql(4, b"\xfb"), eof(5)].concat());
    mysql_query(&mut drawing, db, 200, 210, 2);
    check(drawing, &["/1 200: 200 = C-W-D 10 W-D-W 20 D-W-D 80 D-W-C 90, 2 queries"]);
}

#[test]
fn a_mysql_server_with_too_many_connections() {
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = drawing.open(110, WEB_TO_DB, MYSQL);
    drawing.server(db, 115, &drawn::mysql(0, b"\xff\x10\x04Too many connections"));
    drawing.close(db, 120);
    let split = check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 5 D-W-C 85, 0 queries"]);
    assert_eq!(split.counts.get(Counter::DbUndecoded), 0);
}

#[test]
fn commands_that_mysql_clients_send_without_waiting() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    let query = drawn::mysql(0, b"\x03select 1");
    drawing.client(db, 110, &query);
    drawing.client(db, 112, &query);
    drawing.server(db, 120, &[drawn::mysql(1, &[1]), drawn::mysql(2, b"\x011")].concat());
    drawing.server(db, 122, &drawn::mysql(3, &[0xfe, 0, 0, 2, 0]));
    drawing.server(db, 130, &drawn::mysql_ok(1, 2));
    let split = check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 2 queries"]);
    assert_eq!(split.counts.get(Counter::Trips), 4);
}

#[test]
fn overlapping_requests_share_no_queries() {
    let pictures = |transaction: [u8; 2]| {
        let mut drawing = Drawing::default();
        let db = pg_session(&mut drawing, 10, WEB_TO_DB);
        request(&mut drawing, 1, 100, 200);
        request(&mut drawing, 2, 150, 250);
        request(&mut drawing, 3, 300, 350);
        pg_query(&mut drawing, db, 110, 120, transaction[0]);
        pg_query(&mut drawing, db, 160, 170, transaction[1]);
        pg_query(&mut drawing, db, 310, 320, b'I');
        drawing
    };
    // A query in the time of both: of neither is known what it did.
    let split = check(
        pictures([b'I', b'I']),
        &[
            "/1 200: 100 = overlap",
            "/2 200: 100 = overlap",
            "/3 200: 50 = C-W-D 10 W-D-W 10 D-W-C 30, 1 queries",
        ],
    );
    assert_eq!([Counter::Ambiguous, Counter::ByTime].map(|c| split.counts.get(c)), [1, 2]);
    // It is in a transaction that began before the second.
    let split = check(
        pictures([b'T', b'I']),
        &[
            "/1 200: 100 = C-W-D 10 W-D-W 20 D-W-D 40 D-W-C 30, 2 queries",
            "/2 200: 100 = C-W-C 100, 0 queries",
            "/3 200: 50 = C-W-D 10 W-D-W 10 D-W-C 30, 1 queries",
        ],
    );
    assert_eq!(split.counts.get(Counter::ByTransaction), 1);
}

#[test]
fn transactions_of_mysql() {
    let mut drawing = Drawing::default();
    let db = mysql_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    request(&mut drawing, 2, 150, 250);
    mysql_query(&mut drawing, db, 160, 170, 1);
    mysql_query(&mut drawing, db, 210, 220, 2);
    check(
        drawing,
        &[
            "/1 200: 100 = C-W-C 100, 0 queries",
            "/2 200: 100 = C-W-D 10 W-D-W 20 D-W-D 40 D-W-C 30, 2 queries",
        ],
    );
}

#[test]
fn a_connection_of_its_own_tells_overlapping_requests_apart() {
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    request(&mut drawing, 2, 150, 250);
    let first = pg_session(&mut drawing, 110, WEB_TO_DB);
    pg_query(&mut drawing, first, 160, 170, b'I');
    drawing.close(first, 180);
    let split = check(
        drawing,
        &[
            "/1 200: 100 = C-W-D 10 W-D-W 14 D-W-D 46 D-W-C 30, 1 queries",
            "/2 200: 100 = C-W-C 100, 0 queries",
        ],
    );
    assert_eq!(split.counts.get(Counter::ByConnection), 1);
}

#[test]
fn queries_beyond_a_request_are_not_its_own() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 90, 110, b'I');
    pg_query(&mut drawing, db, 190, 210, b'I');
    pg_query(&mut drawing, db, 220, 230, b'I');
    let split = check(drawing, &["/1 200: 100 = C-W-C 100, 0 queries"]);
    assert_eq!([Counter::Outside, Counter::Outlasting].map(|c| split.counts.get(c)), [4, 1]);
}

#[test]
fn what_cannot_be_read_is_unknown() {
    // Encrypted by agreement, from the first byte on, and compressed.
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = drawing.open(110, WEB_TO_DB, PG);
    drawing.client(db, 112, &drawn::pg_startup(80_877_103, b""));
    drawing.server(db, 113, b"S");
    drawing.client(db, 120, b"\x16\x03\x01\0\x05hello");
    request(&mut drawing, 2, 300, 400);
    let split =
        check(drawing, &["/1 200: 100 = db_encrypted", "/2 200: 100 = C-W-C 100, 0 queries"]);
    assert_eq!(split.counts.get(Counter::DbEncrypted), 1);

    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = drawing.open(110, WEB_TO_DB, PG);
    drawing.client(db, 120, b"\x16\x03\x01\0\x05hello");
    check(drawing, &["/1 200: 100 = db_encrypted"]);

    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let db = drawing.open(110, WEB_TO_DB, MYSQL);
    drawing.server(db, 112, &drawn::mysql_greeting());
    let tls: Vec<u8> = drawn::mysql_login(0x800)[4..36].to_vec();
    drawing.client(db, 120, &drawn::mysql(1, &tls));
    drawing.client(db, 121, b"\x16\x03\x01\0\x05hello");
    check(drawing, &["/1 200: 100 = db_encrypted"]);

    let mut drawing = Drawing::default();
    let db = drawing.open(10, WEB_TO_DB, MYSQL);
    drawing.server(db, 12, &drawn::mysql_greeting());
    drawing.client(db, 13, &drawn::mysql_login(0x20));
    drawing.server(db, 14, &drawn::mysql_ok(2, 2));
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, b"\x10\0\0\0\0\0\0compressed");
    check(drawing, &["/1 200: 100 = db_undecoded"]);
}

#[test]
fn no_database_in_the_capture_is_said() {
    let mut drawing = Drawing::default();
    request(&mut drawing, 1, 100, 200);
    let stranger = pg_session(&mut drawing, 110, "10.9.9.9:5000");
    pg_query(&mut drawing, stranger, 120, 130, b'I');
    let packets = drawing.in_order();
    let split = split(&packets);
    assert_eq!(shown(&split), ["/1 200: 100 = no_database"]);
    assert_eq!(split.strangers, ["10.9.9.9".parse::<std::net::IpAddr>().unwrap()]);
    // It is the web server's other address.
    let aliases = vec![("10.0.0.2".parse().unwrap(), "10.9.9.9".parse().unwrap())];
    let split = split_with(Roles { aliases, ..Roles::default() }, &packets);
    assert_eq!(shown(&split), ["/1 200: 100 = C-W-D 10 W-D-W 14 D-W-D 6 D-W-C 70, 1 queries"]);
}

#[test]
fn roles_by_hand() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 130, b'I');
    let packets = drawing.in_order();
    let with = |web: &str, db: &str| {
        let endpoints = |text: &str| text.split_whitespace().map(|e| e.parse().unwrap()).collect();
        let roles = Roles { web: endpoints(web), db: endpoints(db), ..Roles::default() };
        shown(&split_with(roles, &packets))
    };
    assert_eq!(with(":80", "10.0.0.3:5432").len(), 1);
    assert_eq!(with(":81", ""), Vec::<String>::new());
    assert_eq!(with("", ":6432"), ["/1 200: 100 = no_database"]);
}

#[test]
fn keep_alive_pipelining_chunks_and_answers_without_bodies() {
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    let send =
        |method: &str, target: &str| format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    drawing.client(
        line,
        100,
        (send("GET", "/1") + &send("HEAD", "/2") + &send("GET", "/3")).as_bytes(),
    );
    drawing.server(
        line,
        110,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n",
    );
    drawing.server(line, 120, b"0\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n");
    drawing.server(line, 130, b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n");
    drawing.server(line, 140, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    drawing.client(line, 150, b"POST /4 HTTP/1.1\r\nContent-Length: 3\r\n\r\nab");
    drawing.client(line, 155, b"c");
    drawing.server(line, 160, b"HTTP/1.1 204 No Content\r\n\r\n");
    drawing.client(
        line,
        170,
        b"POST /5 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    );
    drawing.server(line, 180, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n");
    drawing.server(line, 185, b"x");
    drawing.client(line, 190, send("GET", "/6").as_bytes());
    drawing.server(line, 200, b"HTTP/1.1 200 OK\r\n\r\nup to the end");
    drawing.server(line, 205, b".");
    drawing.close(line, 230);
    let split = check(
        drawing,
        &[
            "/1 200: 20 = C-W-C 20, 0 queries",
            "/2 200: 20 = C-W-C 20, 0 queries",
            "/3 304: 40 = C-W-C 40, 0 queries",
            "/4 204: 10 = C-W-C 10, 0 queries",
            "/5 200: 15 = C-W-C 15, 0 queries",
            "/6 200: 15 = C-W-C 15, 0 queries",
        ],
    );
    let fourth = &split.requests[3];
    assert_eq!((fourth.sent, fourth.answered), (drawn::at(155), drawn::at(160)));
    let fifth = &split.requests[4];
    assert_eq!((fifth.answered, fifth.end), (drawn::at(180), drawn::at(185)));
}

#[test]
fn a_response_up_to_the_end_of_its_connection_needs_that_end() {
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    drawing.client(line, 100, GET);
    drawing.server(line, 110, b"HTTP/1.0 200 OK\r\n\r\nand so on");
    let split = check(drawing.clone(), &[]);
    assert_eq!(split.counts.get(Counter::WithoutResponse), 1);
    drawing.close(line, 120);
    check(drawing, &["/a 200: 10 = no_database"]);
}

#[test]
fn clients_that_wait_for_100_continue() {
    let post = b"POST /1 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n";
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    drawing.client(line, 100, post);
    drawing.server(line, 105, b"HTTP/1.1 100 Continue\r\n\r\n");
    drawing.client(line, 110, b"GET / HTTP/1.1 is not a header");
    drawing.server(line, 120, OK);
    // Refused: the body is not sent.
    drawing.client(line, 130, post);
    drawing.server(line, 135, b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
    drawing.client(line, 140, GET);
    drawing.server(line, 150, OK);
    check(
        drawing,
        &[
            "/1 200: 20 = C-W-C 20, 0 queries",
            "/1 413: 5 = C-W-C 5, 0 queries",
            "/a 200: 10 = C-W-C 10, 0 queries",
        ],
    );
}

#[test]
fn a_web_socket_is_one_request() {
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    drawing.client(line, 100, GET);
    drawing.server(line, 105, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
    drawing.client(line, 110, b"\x81\x05GET /");
    drawing.server(line, 120, b"\x81\x05hello");
    check(drawing, &["/a 101: 5 = C-W-C 5, 0 queries"]);
}

#[test]
fn a_capture_that_begins_midway() {
    let mut drawing = Drawing::default();
    let line = drawing.midway(CLIENT, WEB);
    let pg = drawing.midway(WEB_TO_DB, PG);
    let mysql = drawing.midway("10.0.0.2:50001", MYSQL);
    // The rest of what was under way.
    drawing.server(line, 10, b"the end of a page");
    drawing.server(pg, 11, &drawn::pg(b'D', b"\0\0")[2..]);
    drawing.server(pg, 12, &[drawn::pg(b'C', b"SELECT 1\0"), ready(b'I')].concat());
    drawing.client(line, 100, GET);
    pg_query(&mut drawing, pg, 110, 120, b'I');
    mysql_query(&mut drawing, mysql, 130, 140, 2);
    drawing.server(line, 150, OK);
    let split = check(drawing, &["/a 200: 50 = C-W-D 10 W-D-W 20 D-W-D 10 D-W-C 10, 2 queries"]);
    assert_eq!(split.counts.get(Counter::BeganBefore), 3);
}

/// A driver that pipelines, such as psycopg 3's, sends a Flush behind each Sync.
#[test]
fn a_capture_that_begins_before_a_pipelined_query() {
    let parse = drawn::pg(b'P', b"\0select 1\0\0\0");
    let bind = drawn::pg(b'B', b"\0\0\0\0\0\0\0\0");
    let execute = drawn::pg(b'E', b"\0\0\0\0\0");
    let (sync, flush) = (drawn::pg(b'S', b""), drawn::pg(b'H', b""));
    let one_answer =
        [drawn::pg(b'1', b""), drawn::pg(b'2', b""), drawn::pg(b'C', b"SELECT 1\0")].concat();
    for end in [[&sync[..], &flush].concat(), flush.clone(), sync.clone()] {
        let mut drawing = Drawing::default();
        let db = drawing.midway(WEB_TO_DB, PG);
        request(&mut drawing, 1, 100, 200);
        drawing.client(db, 110, &[&parse[..], &bind, &execute, &end].concat());
        let is_synced = end.contains(&b'S');
        let ready = if is_synced { ready(b'I') } else { Vec::new() };
        drawing.server(db, 130, &[&one_answer[..], &ready].concat());
        check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries"]);
    }
}

#[test]
fn a_handshake_that_is_not_in_the_capture_as_a_whole() {
    // The SYN, or its answer.
    for lost in [0, 1] {
        let mut drawing = Drawing::default();
        request(&mut drawing, 1, 100, 200);
        let before = drawing.packets.len();
        let db = pg_session(&mut drawing, 110, WEB_TO_DB);
        pg_query(&mut drawing, db, 120, 130, b'I');
        drawing.packets.remove(before + lost);
        request(&mut drawing, 2, 300, 400);
        check(drawing, &["/1 200: 100 = lost_packets", "/2 200: 100 = C-W-C 100, 0 queries"]);
    }
}

/// As `cat a.pcapng b.pcapng` has them.
#[test]
fn connections_go_on_from_one_section_of_a_file_to_the_next() {
    let packets = scene().in_order();
    let (first, second) = packets.split_at(packets.len() / 2);
    let bytes = [drawn::pcapng(first), drawn::pcapng(second)].concat();
    assert_eq!(read(&bytes), split(&packets));
}

/// Packets that several CPUs took may stand in the file in another order than that of their times.
#[test]
fn packets_out_of_their_order_in_a_file() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 130, b'I');
    let packets = drawing.in_order();
    let mut swapped = packets.clone();
    for pair in swapped.chunks_mut(2) {
        pair.reverse();
    }
    assert_eq!(shown(&read(&drawn::pcapng(&swapped))), shown(&split(&packets)));
}

/// What comes of a file.
fn read(bytes: &[u8]) -> Split {
    let mut file = CaptureFile::new(bytes, 0).unwrap();
    let mut splitter = Splitter::new(Roles::default());
    while file.advance().unwrap() {
        splitter.packet(&file.packet().unwrap());
    }
    splitter.finish()
}

/// More packets of a long answer than a connection of another protocol is looked at for.
#[test]
fn a_capture_that_begins_in_a_long_answer() {
    let mut drawing = Drawing::default();
    let line = drawing.midway(CLIENT, WEB);
    let pg = drawing.midway(WEB_TO_DB, PG);
    drawing.server(line, 10, &[b'x'; 300_000]);
    drawing.server(pg, 11, &[7; 300_000]);
    drawing.server(pg, 12, &[drawn::pg(b'C', b"SELECT 1\0"), ready(b'I')].concat());
    drawing.client(line, 100, GET);
    pg_query(&mut drawing, pg, 110, 120, b'I');
    drawing.server(line, 150, OK);
    check(drawing, &["/a 200: 50 = C-W-D 10 W-D-W 10 D-W-C 30, 1 queries"]);
}

#[test]
fn methods_of_webdav() {
    let mut drawing = Drawing::default();
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    let line = drawing.open(50, CLIENT, WEB);
    drawing.client(line, 100, b"LOCK /a HTTP/1.1\r\nHost: a\r\n\r\n");
    drawing.server(line, 110, OK);
    check(drawing, &["/a 200: 10 = C-W-C 10, 0 queries"]);
}

#[test]
fn packets_that_are_not_read_are_counted() {
    // The first interface's link type stands after the section's header (28 bytes) and its own (8).
    let mut other = drawn::pcapng(&scene().in_order());
    assert_eq!(other[36], 1);
    other[36] = 127;
    let mut file = CaptureFile::new(other.as_slice(), 0).unwrap();
    assert_eq!(file.advance(), Ok(false));
    assert_eq!(file.counts().get(Counter::LeftOut), scene().packets.len() as u64);
}

#[test]
fn lost_packets_are_counted_and_parts_are_unknown() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 120, b'I');
    let lost_at = drawing.packets.len() - 1;
    pg_query(&mut drawing, db, 130, 140, b'I');
    request(&mut drawing, 2, 300, 400);
    pg_query(&mut drawing, db, 310, 320, b'I');
    let lost = drawing.packets.remove(lost_at);
    assert_eq!(lost.at_us, 120);
    let split = check(
        drawing,
        &["/1 200: 100 = lost_packets", "/2 200: 100 = C-W-D 10 W-D-W 10 D-W-C 80, 1 queries"],
    );
    assert_eq!(split.counts.get(Counter::LostPlaces), 1);
    assert_eq!(split.counts.get(Counter::LostBytes), (lost.frame.len() - 54) as u64);
}

#[test]
fn what_is_lost_inside_of_a_body_does_no_harm() {
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    drawing.client(line, 100, GET);
    drawing.server(line, 110, b"HTTP/1.1 200 OK\r\nContent-Length: 4200\r\n\r\n");
    drawing.server(line, 120, &[b'x'; 4200]);
    let middle = drawing.packets.len() - 2;
    drawing.packets.remove(middle);
    drawing.client(line, 130, GET);
    drawing.server(line, 140, OK);
    let both = ["/a 200: 20 = C-W-C 20, 0 queries", "/a 200: 10 = C-W-C 10, 0 queries"];
    let split = check(drawing, &both);
    assert_eq!(split.counts.get(Counter::LostBytes), 1400);
}

#[test]
fn the_response_of_a_lost_request_is_dropped() {
    let mut drawing = Drawing::default();
    let line = drawing.open(10, CLIENT, WEB);
    let _db = pg_session(&mut drawing, 12, WEB_TO_DB);
    drawing.client(line, 100, GET);
    drawing.packets.pop();
    drawing.server(line, 110, OK);
    drawing.client(line, 120, GET);
    drawing.server(line, 150, OK);
    let split = check(drawing, &["/a 200: 30 = C-W-C 30, 0 queries"]);
    assert_eq!(split.counts.get(Counter::WithoutRequest), 1);
}

#[test]
fn a_short_snapshot_length_cuts_what_can_be_spared() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    let line = request(&mut drawing, 1, 100, 200);
    let row = [drawn::pg(b'D', &[7; 3000]), drawn::pg(b'C', b"SELECT 1\0"), ready(b'I')].concat();
    drawing.client(db, 110, &drawn::pg(b'Q', b"select 1\0"));
    drawing.server(db, 130, &row);
    drawing.client(line, 300, GET);
    drawing.server(line, 310, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    drawing.server(line, 320, &[b'x'; 1000]);
    let mut packets = drawing.in_order();
    for packet in
        packets.iter_mut().filter(|packet| packet.length == 54 + 1400 || packet.at_us == 320)
    {
        packet.frame.truncate(54 + 300);
    }
    let split = split(&packets);
    assert_eq!(
        shown(&split),
        ["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries", "/a 200: 20 = C-W-C 20, 0 queries",]
    );
    assert_eq!(split.counts.get(Counter::CutBytes), 2 * 1100 + 700);
    // Where messages are cut, nothing is claimed.
    for packet in &mut packets {
        packet.frame.truncate(54 + 10);
    }
    let split = split_with(Roles::default(), &packets);
    assert_eq!(shown(&split), Vec::<String>::new());
}

#[test]
fn a_bridge_shows_packets_twice() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 130, b'I');
    let mut packets = drawing.in_order();
    let copies: Vec<DrawnPacket> = packets
        .iter()
        .map(|packet| DrawnPacket { interface: 1, at_us: packet.at_us + 1, ..packet.clone() })
        .collect();
    packets.extend(copies);
    packets.sort_by_key(|packet| packet.at_us);
    let split = split(&packets);
    assert_eq!(shown(&split), ["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries"]);
    assert_eq!(split.counts.get(Counter::OtherInterface), split.counts.get(Counter::Packets) / 2);
}

#[test]
fn a_confirmation_that_stands_too_early_moves_no_times() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    let confirmation = drawing.packets[2].clone();
    assert_eq!(confirmation.length, 54);
    request(&mut drawing, 1, 100, 200);
    pg_query(&mut drawing, db, 110, 130, b'I');
    let mut packets = drawing.in_order();
    let answer = packets.iter().position(|packet| packet.at_us == 130).unwrap();
    packets.insert(answer, DrawnPacket { at_us: 135, ..confirmation });
    let split = split(&packets);
    assert_eq!(shown(&split), ["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries"]);
    assert_eq!(split.counts.get(Counter::TimeWentBack), 0);
}

#[test]
fn addresses_of_version_6_and_ports_that_are_used_again() {
    let mut drawing = Drawing::default();
    for us in [100, 300] {
        let db = drawing.open(us + 5, "[fd00::2]:5000", "[fd00::3]:5432");
        let line = drawing.open(us - 10, "[fd00::9]:4000", "[fd00::2]:80");
        drawing.client(line, us, GET);
        drawing.client(db, us + 6, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
        drawing.server(db, us + 9, &[drawn::pg(b'R', &[0; 4]), ready(b'I')].concat());
        pg_query(&mut drawing, db, us + 20, us + 30, b'I');
        drawing.server(line, us + 50, OK);
        drawing.close(line, us + 60);
        drawing.close(db, us + 60);
    }
    let both = ["/a 200: 50 = C-W-D 5 W-D-W 14 D-W-D 11 D-W-C 20, 1 queries"; 2];
    // That the first ones were closed may have been lost.
    let mut open = drawing.clone();
    open.packets.retain(|packet| packet.at_us != 160);
    check(open, &both);
    let split = check(drawing, &both);
    assert_eq!(split.counts.get(Counter::Connections), 4);
}

#[test]
fn cancel_requests_are_no_queries() {
    let mut drawing = Drawing::default();
    let db = pg_session(&mut drawing, 10, WEB_TO_DB);
    request(&mut drawing, 1, 100, 200);
    drawing.client(db, 110, &drawn::pg(b'Q', b"select pg_sleep(9)\0"));
    let cancel = drawing.open(120, "10.0.0.2:50009", PG);
    drawing.client(cancel, 122, &drawn::pg_startup(80_877_102, &[0; 8]));
    drawing.close(cancel, 123);
    drawing.server(db, 130, &[drawn::pg(b'E', b"\0"), ready(b'I')].concat());
    let split = check(drawing, &["/1 200: 100 = C-W-D 10 W-D-W 20 D-W-C 70, 1 queries"]);
    assert_eq!(split.counts.get(Counter::Cancels), 1);
}

/// Xorshift: Marsaglia, "Xorshift RNGs" (2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Everything at once, as bytes of each connection and direction.
fn scene() -> Drawing {
    let mut drawing = Drawing::default();
    let pg = pg_session(&mut drawing, 10, WEB_TO_DB);
    let mysql = mysql_session(&mut drawing, 20, "10.0.0.2:50001");
    let line = drawing.open(50, CLIENT, WEB);
    for us in [1000, 2000, 3000, 4000, 5000] {
        drawing.client(line, us, GET);
        pg_query(&mut drawing, pg, us + 100, us + 200, b'I');
        mysql_query(&mut drawing, mysql, us + 300, us + 350, 2);
        let big =
            [drawn::pg(b'D', &[7; 3000]), drawn::pg(b'C', b"SELECT 1\0"), ready(b'I')].concat();
        drawing.client(pg, us + 400, &drawn::pg(b'Q', b"select 1\0"));
        drawing.server(pg, us + 500, &big);
        drawing.server(line, us + 600, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        drawing.server(line, us + 600, b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n");
    }
    drawing
}

/// Cuts each packet's bytes into segments at random, repeats some and changes their order, all within its instant.
fn shuffled(packets: &[DrawnPacket], random: &mut Random) -> Vec<DrawnPacket> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < packets.len() {
        let now = packets[at].at_us;
        let n = packets[at..].iter().take_while(|packet| packet.at_us == now).count();
        let mut instant: Vec<DrawnPacket> = Vec::new();
        for packet in &packets[at..at + n] {
            let pieces = cut(packet, random);
            for piece in pieces {
                if random.below(4) == 0 {
                    instant.push(piece.clone());
                }
                instant.push(piece);
            }
        }
        // A SYN stays the first.
        if packets[at].frame[47] & 2 == 0 {
            for last in (1..instant.len()).rev() {
                instant.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        all.extend(instant);
        at += n;
    }
    all
}

fn cut(packet: &DrawnPacket, random: &mut Random) -> Vec<DrawnPacket> {
    let payload = &packet.frame[54..];
    if payload.is_empty() {
        return vec![packet.clone()];
    }
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < payload.len() {
        let most = if random.below(2) == 0 { 3 } else { 700 };
        let n = (1 + random.below(most) as usize).min(payload.len() - from);
        // Sometimes it begins before what was sent already.
        let back = if random.below(4) == 0 { from.min(2) } else { 0 };
        let bytes = &payload[from - back..from + n];
        let mut frame = packet.frame[..54].to_vec();
        frame[16..18].copy_from_slice(&((40 + bytes.len()) as u16).to_be_bytes());
        let seq = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let seq = seq.wrapping_add((from - back) as u32);
        frame[38..42].copy_from_slice(&seq.to_be_bytes());
        frame.extend_from_slice(bytes);
        pieces.push(DrawnPacket { length: frame.len(), frame, ..packet.clone() });
        from += n;
    }
    pieces
}

#[test]
fn segments_may_be_cut_repeated_and_reordered() {
    let packets = scene().in_order();
    let expected = split(&packets);
    assert_eq!(
        shown(&expected),
        ["/a 200: 600 = C-W-D 100 W-D-W 250 D-W-D 150 D-W-C 100, 3 queries"; 5]
    );
    let mut random = Random(0x9e37_79b9);
    let (mut repeated, mut reordered) = (0, 0);
    for _ in 0..300 {
        let split = split(&shuffled(&packets, &mut random));
        assert_eq!(split.requests, expected.requests, "{:?}", seen(&split));
        assert_eq!(split.counts.get(Counter::LostPlaces), 0);
        repeated += split.counts.get(Counter::Retransmitted);
        reordered += split.counts.get(Counter::Reordered);
    }
    assert!(1000 < repeated && 1000 < reordered, "{repeated} {reordered}");
}

/// Whatever is lost: what is known is as it would be without the loss.
#[test]
fn losses_leave_what_is_known_as_it_is() {
    let packets = scene().in_order();
    let expected = split(&packets);
    // Of what was lost at the very end of a connection, nothing tells.
    let n_lossy = packets.partition_point(|packet| packet.at_us < 5000) as u64;
    let mut random = Random(7);
    let (mut known, mut unknown) = (0, 0);
    for _ in 0..2000 {
        let mut some = packets.clone();
        for n in 0..1 + random.below(3) {
            some.remove(random.below(n_lossy - n) as usize);
        }
        for request in split(&some).requests {
            match &request.outcome {
                Outcome::Known(parts) => {
                    known += 1;
                    let same = expected.requests.contains(&request);
                    assert!(same, "{:?} {parts:?}", request.begin);
                }
                Outcome::Unknown(why) => {
                    unknown += 1;
                    assert_eq!(*why, Unknown::LostPackets);
                }
            }
        }
    }
    assert!(1000 < known && 100 < unknown, "{known} {unknown}");
}

#[test]
fn files_give_the_same() {
    let packets = scene().in_order();
    let found = read(&drawn::pcapng(&packets));
    assert_eq!(found.counts.get(Counter::Packets), packets.len() as u64);
    assert_eq!(found, split(&packets));
}

#[test]
fn a_database_in_the_web_servers_guest_is_known_by_its_trace() {
    let mut drawing = Drawing::default();
    for (port, us) in [(1, 100), (2, 150), (3, 300), (4, 950)] {
        request(&mut drawing, port, us, us + 100);
    }
    let trip = |from, to| (drawn::at(from), drawn::at(to));
    let guest = TracedGuest {
        web: "10.0.0.2".parse().unwrap(),
        trips: vec![trip(160, 170), trip(310, 320), trip(330, 340)],
        traced: trip(0, 1000),
        has_losses: false,
        has_database: true,
    };
    let with = |guest: &TracedGuest| {
        let mut splitter = Splitter::new(Roles::default());
        for drawn in drawing.clone().in_order() {
            splitter.packet(&drawn.packet());
        }
        splitter.add_traced(guest);
        splitter.finish()
    };
    let split = with(&guest);
    assert_eq!(
        shown(&split),
        [
            "/1 200: 100 = overlap",
            "/2 200: 100 = overlap",
            "/3 200: 100 = C-W-D 10 W-D-W 20 D-W-D 10 D-W-C 60, 2 queries",
            "/4 200: 100 = not_traced",
        ]
    );
    assert_eq!(split.counts.get(Counter::Traced), 3);
    let lossy = with(&TracedGuest { has_losses: true, ..guest.clone() });
    assert!(shown(&lossy)[2].ends_with("lost_events"));
    let without = with(&TracedGuest { has_database: false, trips: Vec::new(), ..guest });
    assert!(shown(&without)[2].ends_with("no_database"));
}
