//! Destinations of `rolldrop load`: names that change while it runs, both address families, Unix sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, Metadata, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow};
use serde_json::Value;

use crate::harness::{Finished, Rolldrop};
use crate::machine::{Meanwhile, figure, measured};

const NAME: &str = "web.test";

/// Answers every request until the test process exits.
fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(&mut stream));
        }
    });
}

fn answer(stream: &mut (impl Read + Write)) {
    let mut request = [0; 4096];
    if matches!(stream.read(&mut request), Ok(length) if length > 0) {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    }
}

/// Starts a DNS server that returns these answers to successive queries for IPv4 addresses, and then repeats the last
/// one. `None` means that the name does not exist.
fn dns(answers: Vec<Option<Vec<Ipv4Addr>>>, v6: Vec<Ipv6Addr>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut asked = 0;
        let mut bytes = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let request = Message::from_vec(&bytes[..length]).expect("a question");
            let query = &request.queries[0];
            let mut response =
                Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
            response.metadata = Metadata::response_from_request(&request.metadata);
            response.add_query(query.clone());
            assert_eq!(query.name(), &Name::from_str("web.test.").expect("a name"));
            let now = answers[asked.min(answers.len() - 1)].as_deref();
            let record = |data| Record::from_rdata(query.name().clone(), 1, data);
            match (query.query_type(), now) {
                (_, None) => response.metadata.response_code = ResponseCode::NXDomain,
                (RecordType::A, Some(all)) => {
                    for ip in all {
                        response.add_answer(record(RData::A(A(*ip))));
                    }
                }
                (_, Some(_)) => {
                    for ip in &v6 {
                        response.add_answer(record(RData::AAAA(AAAA(*ip))));
                    }
                }
            }
            asked += usize::from(query.query_type() == RecordType::A);
            let _ = socket.send_to(&response.to_vec().expect("a response"), from);
        }
    });
    address
}

fn rows(finished: &Finished) -> Vec<RequestRow> {
    read_table(&finished.dir().join("run")).unwrap_or_else(|e| panic!("{e}\n{finished}"))
}

fn name_answers(finished: &Finished) -> Vec<Value> {
    let events = std::fs::read_to_string(finished.dir().join("run/events.jsonl")).expect("events");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events.filter(|event| event["kind"] == "name_answer").collect()
}

/// Returns listeners on these two addresses, at the same port.
fn listeners(first: &str, second: &str) -> (TcpListener, TcpListener) {
    for _ in 0..100 {
        let one = TcpListener::bind((first, 0)).expect("a port");
        let port = one.local_addr().expect("an address").port();
        if let Ok(other) = TcpListener::bind((second, port)) {
            return (one, other);
        }
    }
    panic!("no port is free on both");
}

#[test]
fn load_follows_dns_and_records_nxdomain() {
    measured(load_follows_dns);
}

fn load_follows_dns() {
    let meanwhile = Meanwhile::begins();
    let (one, other) = listeners("127.0.0.2", "127.0.0.3");
    let port = one.local_addr().expect("an address").port();
    serve(one);
    serve(other);
    let [first, second] = [2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    let server =
        dns(vec![Some(vec![first]), Some(vec![second, first]), None, Some(vec![second])], Vec::new());
    let finished = Rolldrop::new(["load", &format!("http://{NAME}:{port}/"), "-r", "100", "-d", "6s"])
        .args(["--dns-servers", &server.to_string(), "--out", "run", "--quiet"])
        .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
        .finish()
        .expect_code(0);

    let [first, second] = [first, second].map(|ip| format!("{ip}:{port}"));
    let answers = name_answers(&finished);
    let led_to: Vec<_> = answers.iter().map(|event| (&event["addresses"], &event["error"])).collect();
    let (none, null) = (serde_json::json!([]), Value::Null);
    let [alone, both, after] =
        [vec![&first], vec![&first, &second], vec![&second]].map(|all| serde_json::json!(all));
    let nxdomain = Value::from("nxdomain");
    let expected = [(&alone, &null), (&both, &null), (&none, &nxdomain), (&after, &null)];
    assert_eq!(led_to, expected, "{finished}");

    let at = |event: &Value| event["t_ns"].as_i64().expect("a stamp");
    let within = |part: usize, row: &RequestRow| {
        let end = answers.get(part + 1).map_or(i64::MAX, at);
        // Requests in flight when the DNS answer changed may have used either address.
        let tried = row.connect_start.unwrap_or(row.end).unix_ns();
        at(&answers[part]) < row.scheduled.unix_ns() && tried < end
    };
    let mut rows = rows(&finished);
    rows.sort_by_key(|row| row.seq);
    let part = |part: usize| rows.iter().filter(move |row| within(part, row));
    for row in part(0).chain(part(3)).chain(part(1)) {
        assert_eq!((row.outcome, &row.detail), (Outcome::Ok, &None), "{row:?}\n{finished}");
    }
    assert!(part(0).all(|row| row.remote_addr.as_deref() == Some(&first)), "{finished}");
    assert!(part(3).all(|row| row.remote_addr.as_deref() == Some(&second)), "{finished}");
    let turns: Vec<_> = part(1).map(|row| row.remote_addr.as_deref()).collect();
    // On a busy machine, two consecutive requests may take their addresses in the opposite order.
    figure(meanwhile.taken(), turns.windows(2).all(|pair| pair[0] != pair[1]), || {
        format!("they take turns: {turns:?}")
    });
    for row in part(2) {
        assert_eq!((row.outcome, row.detail.as_deref()), (Outcome::DnsError, Some("nxdomain")), "{row:?}");
        assert!(row.connect_start.is_none() && row.remote_addr.is_none() && row.conn.is_none(), "{row:?}");
    }
    assert!((0..4).all(|number| part(number).count() > 0), "{finished}");
}

#[test]
fn unresolvable_name_stops_load_early() {
    let server = dns(vec![None], Vec::new());
    let finished = Rolldrop::new(["load", &format!("http://{NAME}/"), "--dns-servers", &server.to_string()])
        .finish()
        .expect_code(2);
    assert!(finished.stderr().contains("failed to resolve web.test: nxdomain"), "{finished}");
}

#[test]
fn load_uses_answering_address_family() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    serve(listener);
    let server = dns(vec![Some(vec![Ipv4Addr::LOCALHOST])], vec![Ipv6Addr::LOCALHOST]);
    let load = |args: &[&str]| {
        let finished = Rolldrop::new(["load", &format!("http://{NAME}:{port}/"), "-n", "6", "--out", "run"])
            .args(["--dns-servers", &server.to_string(), "--connect-timeout", "60s", "--quiet"])
            .args(args)
            .finish()
            .expect_code(0);
        let outcomes: Vec<_> = rows(&finished).iter().map(|row| row.outcome).collect();
        (outcomes, finished)
    };
    let (outcomes, finished) = load(&[]);
    assert_eq!(outcomes, [Outcome::Ok; 6], "{finished}");
    let warning = format!("using only the IPv4 addresses of web.test, because [::1]:{port} does not answer");
    assert!(finished.stderr().contains(&warning), "{finished}");
    assert_eq!(load(&["-4"]).0, [Outcome::Ok; 6]);
    assert_eq!(load(&["-6"]).0, [Outcome::ConnectRefused; 6]);
}

#[test]
fn unix_socket_carries_requests() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("web.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| answer(&mut stream)));
    let path = path.to_str().expect("a path");
    let finished = Rolldrop::new(["load", "http://web/", "-n", "6", "--out", "run", "--quiet"])
        .args(["--unix-socket", path, "--response-timeout", "60s"])
        .finish()
        .expect_code(0);
    for row in rows(&finished) {
        assert_eq!((row.outcome, row.remote_addr.as_deref()), (Outcome::Ok, Some(path)), "{row:?}");
        assert!(row.connected.is_some() && row.local_port.is_none(), "{row:?}");
    }
}

#[test]
fn first_byte_and_response_timeouts_are_separate() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            // One target begins its response and never completes it.
            if request[..length].starts_with(b"GET /begins") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            }
            held.push(stream);
        }
    });
    let [silent, begins] = ["silent", "begins"].map(|path| format!("http://{address}/{path}"));
    let finished =
        Rolldrop::new(["load", &silent, &begins, "-n", "6", "-r", "50", "--out", "run", "--quiet"])
            .args(["--first-byte-timeout", "1s", "--response-timeout", "3s", "--connect-timeout", "60s"])
            .finish()
            .expect_code(0);
    for row in rows(&finished) {
        let expected = if *row.target == *silent { Some("first_byte") } else { None };
        assert_eq!((row.outcome, row.detail.as_deref()), (Outcome::ResponseTimeout, expected), "{row:?}");
        assert_eq!(row.bytes_received > 0, expected.is_none(), "{row:?}");
    }
}
