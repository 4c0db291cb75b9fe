//! Tests with lines from real gateways (recorded by `scripts/proofs/access-logs`, and shortened), and with hostile
//! lines.
//!
//! Each line of a file in `tests/recorded` has a case, the client's result, and the logged line, separated by tabs.

use std::time::Duration;

use rolldrop_record::{LoggedAttempt, LoggedRequest, LoggedUpstream, Outcome, Stamp};

use super::*;

/// Formats, each with its recorded lines and its column heading in `docs/access-logs.md`, if it has a column there.
const RECORDED: &[(&str, &str, &str)] = &[
    ("ingress-nginx", include_str!("tests/recorded/ingress-nginx.txt"), "ingress-nginx"),
    (NGINX, include_str!("tests/recorded/nginx.txt"), "nginx, as advised"),
    ("haproxy", include_str!("tests/recorded/haproxy.txt"), "HAProxy, as advised"),
    ("envoy-json", include_str!("tests/recorded/envoy-json.txt"), "Envoy, JSON"),
    ("envoy", include_str!("tests/recorded/envoy-istio.txt"), ""),
    ("envoy", include_str!("tests/recorded/envoy.txt"), "Envoy, text"),
    ("traefik-json", include_str!("tests/recorded/traefik-json.txt"), "Traefik, JSON"),
    ("traefik", include_str!("tests/recorded/traefik.txt"), "Traefik, text"),
    ("caddy", include_str!("tests/recorded/caddy.txt"), "Caddy, as advised"),
];

/// The format that the documentation recommends.
const NGINX: &str = concat!(
    "nginx=$msec $request_time $status $body_bytes_sent $proxy_upstream_name [$upstream_addr] [$upstream_status] ",
    "[$upstream_connect_time] [$upstream_header_time] [$upstream_response_time] [$upstream_bytes_received] ",
    r#"[$upstream_response_length] $upstream_http_content_length "$request""#
);

const PAGE: &str = include_str!("../../../docs/access-logs.md");

fn format(name: &str) -> LogFormat {
    name.parse().unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn cases(recorded: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    recorded.lines().map(|line| {
        let [case, got, line] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().unwrap();
        (case, got, line)
    })
}

fn read(name: &str, line: &str) -> LoggedRequest {
    format(name).parse(line.as_bytes()).unwrap().unwrap()
}

/// Returns the recorded line for a case.
fn line_of<'a>(recorded: &'a str, case: &str) -> &'a str {
    cases(recorded).find(|(name, ..)| *name == case).map(|(.., line)| line).unwrap()
}

/// Describes a request's attempts for a cell of the table.
fn cell(request: &LoggedRequest) -> String {
    let outcome = |attempt: &LoggedAttempt| match (attempt.outcome, attempt.status) {
        (Some(outcome), _) => format!("`{outcome}`"),
        (None, Some(status)) => format!("? {status}"),
        (None, None) => "?".to_owned(),
    };
    let shown = request.attempts.iter().map(outcome).collect::<Vec<_>>().join(", ");
    let hidden = request.attempts_made.map_or(0, |made| made as usize - request.attempts.len());
    let mut words = vec![match (request.attempts.is_empty(), hidden) {
        (true, _) => "no upstream".to_owned(),
        (false, 0) => shown,
        (false, n) => format!("{n} more, {shown}"),
    }];
    if request.attempts.iter().any(|attempt| attempt.upstream == LoggedUpstream::Unnamed) {
        words.push("no address".to_owned());
    }
    if request.client_left {
        words.push("client left".to_owned());
    }
    words.join("; ")
}

fn table() -> String {
    let columns: Vec<_> = RECORDED.iter().filter(|(.., heading)| !heading.is_empty()).collect();
    let row = |first: &str, cells: Vec<String>| format!("| {first} | {} |", cells.join(" | "));
    let mut lines = vec![row("case", columns.iter().map(|(.., heading)| (*heading).to_owned()).collect())];
    lines.push(format!("|---|{}", "---|".repeat(columns.len())));
    for (case, ..) in cases(columns[0].1) {
        let cells = columns.iter().map(|(format, recorded, _)| cell(&read(format, line_of(recorded, case))));
        lines.push(row(&format!("`{case}`"), cells.collect()));
    }
    lines.join("\n")
}

#[test]
fn docs_table_matches_recorded_lines() {
    assert!(PAGE.contains(&table()), "docs/access-logs.md should have:\n{}", table());
}

#[test]
fn docs_recommend_tested_nginx_format() {
    assert!(PAGE.contains(NGINX.strip_prefix("nginx=").unwrap()));
}

#[test]
fn recorded_upstreams_match_servers() {
    for (format, recorded, _) in RECORDED {
        for (case, _, line) in cases(recorded) {
            let request = read(format, line);
            let last = request.attempts.last().map(|attempt| attempt.upstream.clone());
            let expected = match case {
                "ok" => "10.1.0.10:8080",
                "refused" => "10.1.0.20:8080",
                "unreachable" => "10.2.0.22:8080",
                "hang" | "leave" => "10.1.0.33:8080",
                "down" => {
                    assert_eq!(last, None, "{format}");
                    continue;
                }
                _ => continue,
            };
            assert_eq!(last, Some(LoggedUpstream::Address(expected.parse().unwrap())), "{format} {case}");
        }
    }
}

#[test]
fn recorded_status_matches_client_result() {
    for (format, recorded, _) in RECORDED {
        for (case, got, line) in cases(recorded) {
            let status =
                read(format, line).status.map_or("no response".to_owned(), |status| status.to_string());
            let (left, got) = got.strip_prefix("left, ").map_or((false, got), |got| (true, got));
            // A gateway may not notice that a client left, and HTTP/0.9 has no status.
            let same = got.split(',').next() == Some(status.as_str());
            assert!(same || left || case == "garbage", "{format} {case}: {got}, {status}");
        }
    }
}

#[test]
fn every_format_yields_request_times() {
    let day = |at: Stamp| at.unix_ns() / 1_000_000_000 / 86_400;
    for (format, recorded, _) in RECORDED {
        for (case, _, line) in cases(recorded).filter(|(case, ..)| *case != "garbage") {
            let request = read(format, line);
            assert_eq!(
                day(request.earliest),
                day("2026-11-29".parse().map(stamp_of).unwrap()),
                "{format} {case}"
            );
            let width_ns = request.latest.ns_since(request.earliest);
            let most = if matches!(*format, "ingress-nginx" | "traefik") { 1_000_000_000 } else { 1_000_000 };
            assert!((0..=most).contains(&width_ns), "{format} {case}: {width_ns}");
            let took = request.took.unwrap();
            match case {
                "hang" => assert!((1400..1700).contains(&took.as_millis()), "{format}: {took:?}"),
                "silent" => assert!((900..1200).contains(&took.as_millis()), "{format}: {took:?}"),
                _ => {}
            }
        }
    }
}

fn stamp_of(day: jiff::civil::Date) -> Stamp {
    let at = day.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
    Stamp::from_unix_ns(i64::try_from(at.as_nanosecond()).unwrap())
}

#[test]
fn parser_keeps_no_client_data() {
    for (format, recorded, _) in RECORDED {
        for (case, _, line) in cases(recorded) {
            let kept = format!("{:?}", read(format, line));
            for secret in ["127.0.0.1", "shop.example", "GET", "/1", "HTTP"] {
                assert!(!kept.contains(secret), "{format} {case}: {kept}");
            }
        }
    }
}

/// A line may be cut off where a log was rotated. The rest of it must never name a different upstream.
#[test]
fn truncated_line_names_no_other_upstream() {
    for (name, recorded, _) in RECORDED {
        let format = format(name);
        for (case, _, line) in cases(recorded) {
            let upstreams = |line: &[u8]| {
                let request = format.parse(line).ok()??;
                Some(request.attempts.iter().map(|attempt| attempt.upstream.clone()).collect::<Vec<_>>())
            };
            let whole = upstreams(line.as_bytes()).unwrap();
            for end in 1..line.len() {
                let Some(cut) = upstreams(&line.as_bytes()[..end]) else { continue };
                let same = cut == whole || cut.iter().all(|upstream| *upstream == LoggedUpstream::Unnamed);
                assert!(same, "{name} {case}, {end} bytes: {cut:?}");
            }
        }
    }
}

#[test]
fn log_format_round_trips() {
    for (name, ..) in RECORDED {
        assert_eq!(format(name).to_string(), *name);
    }
    let error = "apache".parse::<LogFormat>().unwrap_err().to_string();
    assert!(error.contains("ingress-nginx, nginx=<log_format>, haproxy"), "{error}");
}

#[test]
fn incomplete_nginx_templates_are_refused() {
    let error = |template: &str| format!("nginx={template}").parse::<LogFormat>().unwrap_err().to_string();
    assert_eq!(error("$remote_addr [$time_local] $status"), "nginx=<log_format>: needs $request_time");
    assert_eq!(error("$msec $request_time $status"), "nginx=<log_format>: needs $upstream_addr");
    assert!(
        error("$request_time $status $upstream_addr").contains("needs $msec, $time_iso8601 or $time_local")
    );
    for unclear in
        ["$upstream_addr, $msec", "$upstream_addr$msec", "$upstream_addr : $msec", "$upstream_addr,$msec"]
    {
        let error = error(&format!("{unclear} $request_time $status"));
        assert!(error.contains("cannot tell where $upstream_addr ends"), "{unclear}: {error}");
    }
    assert!(error(&"$status ".repeat(1000)).contains("longer than 4096"));
}

#[test]
fn nginx_lists_split_at_both_separators() {
    let name = r#"nginx={"at":"${time_iso8601}","t":$request_time,"s":"$status","u":"$upstream_addr","us":"$upstream_status"}"#;
    let line = r#"{"at":"2026-11-29T03:00:00+01:00","t":0.250,"s":"200","u":"10.0.0.1:80, unix:/run/a.sock : [fd00::2]:81","us":"502, 504 : 200"}"#;
    let request = read(name, line);
    assert_eq!(request.attempts_made, Some(3));
    let upstreams: Vec<_> = request.attempts.iter().map(|attempt| attempt.upstream.clone()).collect();
    let address = |text: &str| LoggedUpstream::Address(text.parse().unwrap());
    assert_eq!(upstreams, [address("10.0.0.1:80"), LoggedUpstream::Unnamed, address("[fd00::2]:81")]);
    assert_eq!(
        request.attempts.iter().map(|attempt| attempt.status).collect::<Vec<_>>(),
        [Some(502), Some(504), Some(200)]
    );
    assert_eq!(
        request.earliest,
        "2026-11-29".parse().map(stamp_of).unwrap() + Duration::from_millis(7_199_750)
    );
    // There are fewer statuses than upstreams, as in a forged line.
    let forged = line.replace("502, 504 : 200", "502, 200");
    assert_eq!(format(name).parse(forged.as_bytes()), Err(LineError::Field("upstream_status")));
}

/// The lists were logged by nginx 1.22.1; `20` refuses connections, `13` sends 503, and `14` and `11` send 200 and 404.
#[test]
fn nginx_redirect_is_not_a_retry() {
    let name = "nginx=$msec $request_time $status [$upstream_addr] [$upstream_status] [$upstream_connect_time] [$upstream_header_time]";
    let facts = |rest: &str| {
        let request = read(name, &format!("1796054929.934 0.005 {rest}"));
        let outcomes: Vec<_> = request.attempts.iter().map(|attempt| attempt.outcome).collect();
        (outcomes, request.retries().unwrap())
    };
    let (good, refused) = (Some(Outcome::Ok), Some(Outcome::ConnectError));
    // `error_page 502 /page`, whose upstream sent 200 or refused the connection as well.
    let page = facts("502 [10.0.0.20:80 : 10.0.0.14:80] [502 : 200] [- : 0.000] [- : 0.005]");
    assert_eq!(page, (vec![refused], 0));
    let no_page = facts("502 [10.0.0.20:80 : 10.0.0.20:80] [502 : 502] [- : -] [- : -]");
    assert_eq!(no_page, (vec![refused], 0));
    let own_error = facts("503 [10.0.0.13:80 : 10.0.0.14:80] [503 : 200] [0.000 : 0.001] [0.005 : 0.004]");
    assert_eq!(own_error, (vec![Some(Outcome::HttpError)], 0));
    // None of a group's servers could be tried.
    assert_eq!(facts("502 [web : 10.0.0.14:80] [502 : 200] [- : 0.000] [- : 0.004]"), (vec![], 0));
    // `error_page 502 = @other`, which hid the failure from the client.
    let saved =
        facts("200 [10.0.0.20:80, 10.0.0.21:80 : 10.0.0.14:80] [502, 502 : 200] [-, - : 0.0] [-, - : 0.1]");
    assert_eq!(saved, (vec![refused, refused, None], 2));
    // `X-Accel-Redirect`, and `error_page 404`.
    let file = facts("200 [10.0.0.14:80 : 10.0.0.15:80] [200 : 200] [0.000 : 0.000] [0.001 : 0.003]");
    assert_eq!(file, (vec![good, None], 0));
    let missing = facts("404 [10.0.0.11:80 : 10.0.0.14:80] [404 : 200] [0.001 : 0.000] [0.003 : 0.004]");
    assert_eq!(missing, (vec![good, None], 0));
    let no_file = facts("502 [10.0.0.14:80 : 10.0.0.20:80] [200 : 502] [0.000 : -] [0.001 : -]");
    assert_eq!(no_file, (vec![good, refused], 0));
}

#[test]
fn nginx_parser_ignores_client_text() {
    let (_, _, line) = cases(RECORDED[0].1).next().unwrap();
    let request = read("ingress-nginx", line);
    for text in [r#"GET /\x22 503 0 \x22 HTTP/1.1"#, r#"\x16\x03\x01"#, "GET /ä HTTP/1.1", ""] {
        let start = line.find('"').unwrap() + 1;
        let end = start + line[start..].find('"').unwrap();
        let line = format!("{}{text}{}", &line[..start], &line[end..]);
        assert_eq!(read("ingress-nginx", &line), request, "{text}");
    }
}

/// nginx logged the times of an upload of 200 kB at 60 kB/s to a pod that refused the connection.
#[test]
fn nginx_attempt_begins_after_upload() {
    let times = |line: &str| {
        let request = read(NGINX, line);
        (request.earliest.unix_ns() / 1_000_000, request.took.unwrap().as_millis())
    };
    let refused = r#"1796054933.066 3.000 502 157 shop [10.0.0.20:80] [502] [-] [-] [0.001] [0] [0] - "POST / HTTP/1.1""#;
    assert_eq!(times(refused), (1_796_054_933_065, 1));
    // The time to send the error's page is no wait.
    let page = refused.replace("0.20:80", "0.20:80 : 10.0.0.14:80").replace("[502]", "[502 : 200]");
    let page =
        page.replace("[-]", "[- : 0.0]").replace("[0.001]", "[0.001 : 0.400]").replace("[0]", "[0 : 0]");
    assert_eq!(times(&page), (1_796_054_932_665, 401));
    // This request may have waited for a slow client after the attempt.
    let slow = refused.replace("502", "200").replace("[-]", "[0.000]");
    assert_eq!(times(&slow), (1_796_054_930_066, 3000));
    let unknown = refused.replace("[0.001]", "[-]");
    assert_eq!(times(&unknown), (1_796_054_930_066, 3000));
}

#[test]
fn haproxy_attempt_begins_after_queue() {
    let line = r#"10.9.9.9:1 [29/Nov/2026:00:00:01.000] web shop/s1 20/3000/-1/-1/3021 503 217 - - SC-- 1/1/0/0/0 0/5 10.1.0.20:8080 "GET / HTTP/1.1""#;
    let day = "2026-11-29".parse().map(stamp_of).unwrap();
    let times = |line: &str| {
        let request = read("haproxy", line);
        let [begun, ended] = [request.earliest, request.earliest + request.took.unwrap()]
            .map(|at| at.ns_since(day) / 1_000_000);
        (begun, ended, request.attempts[0].took.map(|took| took.as_millis()))
    };
    assert_eq!(times(line), (4_020, 4_021, Some(1)));
    assert_eq!(times(&line.replace("0/0/0 0/5", "0/0/2 0/5")), (1_000, 4_021, None));
    assert_eq!(times(&line.replace("/3000/", "/4000/")), (1_000, 4_021, None));
}

#[test]
fn haproxy_parser_accepts_log_variants() {
    let line = r#"<134>Nov 29 02:00:00 gw haproxy[7]: 10.9.9.9:1 [29/Nov/2026:02:00:00.250] web~ shop/s1 1/2/3/4/15 200 1 - - ---- 1/1/0/0/+2 0/0 "#;
    let request = read("haproxy", &format!(r#"{line}fd00::7:8080 {{shop}} "GET / HTTP/1.1""#));
    assert_eq!(request.attempts[0].upstream, LoggedUpstream::Address("[fd00::7]:8080".parse().unwrap()));
    assert_eq!(request.attempts_made, Some(3));
    assert_eq!(request.attempts[0].took, None);
    let request = read("haproxy", &format!(r#"{line}{{10.0.0.1:80}} "GET / HTTP/1.1""#));
    assert_eq!(request.attempts[0].upstream, LoggedUpstream::Unnamed);
    // With `option logasap`, the line is logged as soon as the head arrives.
    let request = read("haproxy", &line.replace("/15 200 1 ", "/+15 200 +1 "));
    assert_eq!((request.took, request.attempts[0].outcome), (None, None));
    let refused = line.replace("1/2/3/4/15", "1/2/4/15");
    assert_eq!(format("haproxy").parse(refused.as_bytes()), Err(LineError::Field("TR/Tw/Tc/Tr/Ta")));
}

#[test]
fn envoy_parser_ignores_quotes_from_clients() {
    let line = r#"[2026-11-29T02:20:55.204Z] "GET / HTTP/2" 503 UF,URX 0 98 7 - "-" "a" "b" "c" "d" "10.9.9.9:9"" "-" "shop" "10.1.0.20:8080""#;
    let request = read("envoy", line);
    assert_eq!(request.attempts[0].upstream, LoggedUpstream::Address("10.1.0.20:8080".parse().unwrap()));
    assert_eq!(request.attempts[0].outcome, Some(Outcome::ConnectError));
    let reset = read("envoy", &line.replace("503 UF,URX", "200 DR"));
    assert!(reset.client_left && reset.attempts[0].outcome.is_none());
    let pipe = line.replace("10.1.0.20:8080", "/run/app.sock");
    assert_eq!(read("envoy", &pipe).attempts[0].upstream, LoggedUpstream::Unnamed);
    let mapped = line.replace("10.1.0.20:8080", "[::ffff:10.1.0.20]:8080");
    assert_eq!(read("envoy", &mapped), request);
}

#[test]
fn caddy_without_advised_fields_names_no_upstream() {
    let line = r#"{"level":"info","ts":1795919167.5,"logger":"http.log.access","msg":"handled request","duration":0.25,"size":10,"status":200}"#;
    let request = read("caddy", line);
    assert_eq!(request.attempts[0].upstream, LoggedUpstream::Unnamed);
    assert_eq!(request.latest, Stamp::from_unix_ns(1_795_919_167_250_000_000));
    let cut = read("caddy", &line.replace("0.25", "0"));
    assert_eq!((cut.earliest, cut.took), (Stamp::default(), None));
}

/// These lines were recorded from gateways.
#[test]
fn gateway_messages_are_skipped() {
    for (name, line) in [
        (
            "envoy",
            "[2026-11-29 02:20:54.945][1][info][main] [source/server/server.cc:1020] starting main dispatch loop",
        ),
        (
            "envoy-json",
            "[2026-11-29 02:20:54.945][1][info][main] [source/server/server.cc:1020] starting main dispatch loop",
        ),
        ("envoy-json", r#"{"level":"info","message":"starting"}"#),
        (
            "ingress-nginx",
            r#"2026/11/29 02:19:43 [error] 15208#15208: *13 connect() failed (111: Connection refused)"#,
        ),
        (
            "ingress-nginx",
            "I1129 02:19:43.123456       7 controller.go:190] \"Configuration changes detected\"",
        ),
        ("ingress-nginx", "NGINX Ingress controller"),
        (NGINX, "/docker-entrypoint.sh: Configuration complete; ready for start up"),
        ("haproxy", "[NOTICE]   (1) : haproxy version is 2.6.12-1+deb12u4"),
        ("haproxy", "Server shop/s1 is DOWN, reason: Layer4 connection problem"),
        ("haproxy", "<129>Nov 29 02:00:00 gw haproxy[7]: backend shop has no server available!"),
        ("haproxy", "10.9.9.9:1 [29/Nov/2026:02:00:00.250] web/1: SSL handshake failure"),
        (
            "traefik",
            "\u{1b}[90m2026-11-29T02:18:57Z\u{1b}[0m \u{1b}[31mERR\u{1b}[0m Cannot start the provider",
        ),
        ("traefik", r#"time="2026-11-29T02:18:57Z" level=error msg="no""#),
        ("traefik-json", r#"{"level":"error","time":"2026-11-29T02:18:57Z","message":"no"}"#),
        (
            "caddy",
            r#"{"level":"error","ts":1795919184.9,"logger":"http.log.error","msg":"no upstreams available","status":503}"#,
        ),
        ("caddy", r#"{"level":"info","ts":1795919119.1,"msg":"shutdown complete"}"#),
        ("caddy", ""),
    ] {
        assert_eq!(format(name).parse(line.as_bytes()), Ok(None), "{name}: {line}");
    }
}

#[test]
fn line_in_other_format_is_refused() {
    for (name, ..) in RECORDED {
        for (other, recorded, _) in RECORDED.iter().filter(|(other, ..)| other != name) {
            let (_, _, line) = cases(recorded).next().unwrap();
            let read = format(name).parse(line.as_bytes());
            // Caddy's parser takes a Traefik line for one of Caddy's other logs, and vice versa.
            let is_json = |name| ["caddy", "traefik-json"].contains(&name);
            assert!(read.is_err() || (is_json(*other) && read == Ok(None)), "{other} as {name}: {read:?}");
        }
    }
}

#[test]
fn line_errors_never_quote_hostile_input() {
    let evil = "\u{1b}[31mevil\u{7}";
    let broken = |format: &str, from: &str, to: &str| {
        let (_, recorded, _) = RECORDED.iter().find(|(name, ..)| *name == format).unwrap();
        let (_, _, line) = cases(recorded).next().unwrap();
        assert!(line.contains(from), "{format}: {line}");
        line.replacen(from, to, 1)
    };
    let lines = [
        (
            "envoy-json",
            broken("envoy-json", "\"response_code\":200", "\"response_code\":99999999999999999999"),
        ),
        (
            "envoy-json",
            broken("envoy-json", "\"response_code\":200", &format!("\"response_code\":\"{evil}\"")),
        ),
        ("envoy-json", broken("envoy-json", "\"response_code\":200", "\"response_code\":-1")),
        ("envoy-json", broken("envoy-json", "2026-11-29T", "9999999-11-29T")),
        ("envoy-json", broken("envoy-json", "httproute", evil)),
        ("envoy-json", "{".repeat(LONGEST_LINE)),
        ("envoy-json", "[".repeat(LONGEST_LINE)),
        ("envoy", broken("envoy", "200", "2000000")),
        ("ingress-nginx", broken("ingress-nginx", "[29/Nov/2026", "[99/Nov/2026")),
        ("ingress-nginx", broken("ingress-nginx", "10.1.0.10:8080", &"10.1.0.10:8080, ".repeat(2000))),
        ("ingress-nginx", broken("ingress-nginx", "shop-ok-80", evil)),
        (NGINX, broken(NGINX, " 200 ", " -200 ")),
        (NGINX, broken(NGINX, "17959", "99999999999999999")),
        ("haproxy", broken("haproxy", "----", "-----")),
        ("haproxy", broken("haproxy", "/0/0 0/0", "/0/99999999999 0/0")),
        ("haproxy", "[".repeat(LONGEST_LINE)),
        ("traefik", broken("traefik", "ms", "")),
        ("traefik-json", broken("traefik-json", "\"Duration\":", "\"Duration\":1e300,\"x\":")),
        ("caddy", broken("caddy", "\"ts\":1", "\"ts\":1e300,\"x\":1")),
        ("caddy", broken("caddy", "\"duration\":", "\"duration\":-1,\"x\":")),
    ];
    for (name, line) in lines {
        let error = format(name).parse(line.as_bytes()).expect_err(&line);
        let shown = error.to_string();
        assert!(!shown.contains(|c: char| c.is_control()) && !shown.contains("evil"), "{name}: {shown}");
    }
    let long = vec![b'a'; LONGEST_LINE + 1];
    assert_eq!(format("envoy").parse(&long), Err(LineError::TooLong));
}
