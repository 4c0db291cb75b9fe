//! Arguments of `rolldrop load`, and their conversion to settings.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::super::formats::LoadFormat;
use super::stream_args::StreamArgs;
use super::tls_args::TlsArgs;
use rolldrop_campaign::fail_on::FailOn;
use rolldrop_load::{PodBody, Record, targets_file};
use rolldrop_record::load::{
    Arrivals, ConnectTo, Connections, DnsSettings, Family, Grpc, Http, Length, Load, LoadTarget, Pace,
    PortRange, Rate, RateStage, Retry, Rpc, Timeouts, defaults, dns_server, in_units, keep_headers, statuses,
};
use rolldrop_record::row_values::POD_HEADER;
use rolldrop_record::{Evidence, Secret};
use rolldrop_scenario::request_text;

const EXAMPLES: &str = "\
Examples:
  rolldrop load http://127.0.0.1:8080/ -r 500 -d 10s
  rolldrop load http://web.shop.svc/ --connections mixed:0.2 --out run1 --format json
  rolldrop load http://127.0.0.1:8080/ --stage 0-500:30s --stage 500:2m --poisson
  rolldrop load http://127.0.0.1:8080/ -r max -c 50 -n 100000
  rolldrop load http://127.0.0.1:8080/items -m POST --template --body '{\"id\": \"{{uuid}}\"}'
  rolldrop load http://127.0.0.1:8080/ --http 2 --connections keepalive -c 4 --max-concurrent-streams 32
  rolldrop load http://127.0.0.1:9090/ --grpc grpc.health.v1.Health/Check --body-hex 0a03776562
  rolldrop load http://127.0.0.1:8000/v1/chat/completions --stream openai -m POST --body-file ask.json -r 5 -d 2m
  rolldrop load ws://127.0.0.1:8080/ws -c 50 -r 100 --body hello
  rolldrop load --targets targets.txt -H @headers --fail-on 'dropped>0.1%' --fail-on 'p99>200ms'
  rolldrop load http://127.0.0.1:8080/ --record vegeta-json=hits.json && vegeta report hits.json

Exit status: 0 measured, whatever the result; 1 a --fail-on limit was exceeded; 2 nothing measured;
3 with --fail-on, if this was not the load you asked for, or too few requests were answered for a
percentile; 130 interrupted.";

/// Headings for groups of options in `--help`. The most used options have no heading.
const REQUEST: &str = "Requests";
const PACE: &str = "Pace";
const CONNECTIONS: &str = "Connections";
const LIMITS: &str = "Timeouts and retries";
const NAMES: &str = "Pod names";
const RESULT: &str = "Result";
const GENERATOR: &str = "Generator";

/// A request body as one value: clap takes a field of type `Vec` for several values.
type Body = Vec<u8>;

/// Arguments of `rolldrop load`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(in super::super) struct LoadArgs {
    /// Target URLs, such as http://HOST:PORT/PATH; multiple URLs take turns
    #[arg(value_name = "URL", required_unless_present = "targets")]
    urls: Vec<String>,
    /// File of targets in vegeta's http or json format, or - for stdin; a comment "# weight: 3" before a target sets its
    /// weight
    #[arg(long, value_name = "FILE", conflicts_with = "urls", help_heading = REQUEST)]
    targets: Option<PathBuf>,
    /// Requests per second, or max for a closed loop, in which each connection sends its next request after a response
    #[arg(
        short,
        long,
        default_value_t = Rate::PerSecond(defaults::RATE),
        value_name = "RATE|max",
        conflicts_with = "stages",
        allow_negative_numbers = true
    )]
    rate: Rate,
    /// Length of the counted part of the load, such as 30s or 1m30s
    #[arg(short, long, default_value = in_units(defaults::DURATION), value_parser = super::super::parse_duration, value_name = "D",
        conflicts_with = "stages", allow_hyphen_values = true)]
    duration: Duration,
    /// Number of requests to send, instead of a duration
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "stages"],
        value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Rate for a period, such as 100:10s, or a linear ramp, such as 100-500:30s; repeat it to run several in a row
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D", help_heading = PACE)]
    stages: Vec<RateStage>,
    /// Send at random times, like independent users (Poisson arrivals), instead of evenly
    #[arg(long, help_heading = PACE)]
    poisson: bool,
    /// Seed for all random choices, to repeat a load [default: a new one each time]
    #[arg(long, value_name = "N", help_heading = PACE)]
    seed: Option<u64>,
    /// Length of a warm-up before the counted part; recorded, but not counted
    #[arg(long, default_value = "0s", value_parser = super::super::parse_duration, value_name = "D", help_heading = PACE)]
    warmup: Duration,
    /// Maximum number of open connections [default: as many as the rate needs if every request times out]
    #[arg(short = 'c', long, value_name = "N")]
    max_connections: Option<usize>,
    /// fresh (one per request), keepalive, or mixed:SHARE (fresh for that share of requests) [default: fresh; keepalive
    /// with --rate max and for WebSocket]
    #[arg(long, value_name = "MODE", help_heading = CONNECTIONS)]
    connections: Option<Connections>,
    /// HTTP version: 1.1, 2 (prior knowledge without TLS), or auto (with TLS, the server chooses by ALPN; otherwise 1.1)
    #[arg(long, default_value_t = Http::Auto, value_name = "auto|1.1|2", help_heading = CONNECTIONS)]
    http: Http,
    /// Maximum concurrent requests on an HTTP/2 connection, if the server allows as many [default: 100, or 1 with
    /// --rate max]
    #[arg(long, value_name = "N", help_heading = CONNECTIONS)]
    max_concurrent_streams: Option<usize>,
    /// gRPC method to call, with the body as its message
    #[arg(long, value_name = "SERVICE/METHOD", help_heading = REQUEST)]
    grpc: Option<Rpc>,
    /// gRPC statuses that count as success
    #[arg(long, default_values_t = [defaults::GRPC_SUCCESS], value_delimiter = ',', value_name = "STATUS", requires = "grpc",
        value_parser = clap::value_parser!(i32).range(0..), help_heading = REQUEST)]
    grpc_success: Vec<i32>,
    /// Maximum time to connect
    #[arg(long, default_value = in_units(defaults::CONNECT_TIMEOUT), value_parser = super::super::parse_duration, value_name = "D", help_heading = LIMITS)]
    connect_timeout: Duration,
    /// Maximum time for the TLS handshake
    #[arg(long, default_value = in_units(defaults::TLS_TIMEOUT), value_parser = super::super::parse_duration, value_name = "D", help_heading = LIMITS)]
    tls_timeout: Duration,
    /// Maximum time from sending to the first byte of the response [default: as for the whole response]
    #[arg(long, value_parser = super::super::parse_duration, value_name = "D", help_heading = LIMITS)]
    first_byte_timeout: Option<Duration>,
    /// Maximum time from sending to the end of the response; with --stream, to its head [default: 5s; 60s with --stream]
    #[arg(long, value_parser = super::super::parse_duration, value_name = "D", help_heading = LIMITS)]
    response_timeout: Option<Duration>,
    /// Request header, or a file with one per line; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE|@FILE", help_heading = REQUEST)]
    headers: Vec<String>,
    /// Request header with its value from an environment variable; repeatable
    #[arg(long, value_name = "NAME=VARIABLE", help_heading = REQUEST)]
    header_from_env: Vec<String>,
    /// Request method
    #[arg(short, long, default_value = defaults::METHOD, conflicts_with = "grpc", help_heading = REQUEST)]
    method: String,
    /// Request body
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", help_heading = REQUEST)]
    body: String,
    /// File with the request body, or - for stdin
    #[arg(long, value_name = "FILE", group = "binary_body", conflicts_with = "body", help_heading = REQUEST)]
    body_file: Option<PathBuf>,
    /// Request body in hexadecimal, such as 0a0377 6562
    #[arg(long, value_name = "DIGITS", group = "binary_body", conflicts_with = "body", value_parser = request_text::from_hex, help_heading = REQUEST)]
    body_hex: Option<Body>,
    /// Request body in base64
    #[arg(long, value_name = "TEXT", group = "binary_body", conflicts_with = "body", value_parser = request_text::from_base64, help_heading = REQUEST)]
    body_base64: Option<Body>,
    /// Replace {{seq}}, {{uuid}}, {{random:N}} and {{int:A-B}} in URLs, header values and bodies
    #[arg(long, help_heading = REQUEST)]
    template: bool,
    /// HTTP statuses that count as success
    #[arg(long, default_value = default_success(), value_delimiter = ',', value_parser = parse_statuses,
        value_name = "STATUS|FROM-TO", conflicts_with = "grpc", help_heading = REQUEST)]
    success: Vec<(u16, u16)>,
    /// Response header with the pod's name, host name or address
    #[arg(long, default_value = POD_HEADER, value_name = "NAME", help_heading = NAMES)]
    pod_header: String,
    /// Regular expression for the pod's name in response bodies without that header, such as hostname:\s*(\S+).
    ///
    /// The name is the first group of the first match in the first 16 KiB, or the whole match if there is no group
    #[arg(long, value_name = "REGEX", conflicts_with = "grpc", help_heading = NAMES)]
    pod_body: Option<PodBody>,
    /// Response header to record for failed requests, besides server, via and x-envoy-*; may end in *; repeatable
    #[arg(long = "keep-header", value_name = "NAME", help_heading = NAMES)]
    keep_headers: Vec<String>,
    /// Connect to HOST2:PORT2 (empty: the same) for requests to HOST1:PORT1 (empty: any)
    #[arg(long, value_name = "HOST1:PORT1:HOST2:PORT2", help_heading = CONNECTIONS)]
    connect_to: Vec<ConnectTo>,
    /// Unix socket to connect to, instead of the URL's host
    #[arg(long, value_name = "PATH", conflicts_with_all = ["connect_to", "source_ports", "source_addresses"], help_heading = CONNECTIONS)]
    unix_socket: Option<PathBuf>,
    /// Maximum number of requests on a kept connection
    #[arg(long, value_name = "N", help_heading = CONNECTIONS)]
    max_requests: Option<u64>,
    /// Maximum age of a kept connection; older ones get no further request
    #[arg(long, value_name = "D", value_parser = super::super::parse_duration, help_heading = CONNECTIONS)]
    max_age: Option<Duration>,
    /// Send a failed request again, up to N times, each time on a new connection.
    ///
    /// Counts and rows keep the first outcome
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N", help_heading = LIMITS)]
    retry: u32,
    /// Delay between a failure and the next attempt
    #[arg(long, default_value = "0s", value_parser = super::super::parse_duration, value_name = "D", requires = "retry", help_heading = LIMITS)]
    retry_delay: Duration,
    /// Local ports for connections, used in turn [default: the system's ephemeral ports]
    #[arg(long, value_name = "FIRST-LAST", help_heading = CONNECTIONS)]
    source_ports: Option<PortRange>,
    /// Reuse local ports within a minute; works only if the server closes connections first
    #[arg(long, help_heading = CONNECTIONS)]
    reuse_ports: bool,
    /// Local address for connections; repeatable, up to once per worker
    #[arg(long = "source-address", value_name = "ADDRESS", help_heading = CONNECTIONS)]
    source_addresses: Vec<IpAddr>,
    /// Record where the kernel's connection tracking sends each connection. Needs NET_ADMIN
    #[arg(long, value_name = "conntrack", help_heading = NAMES)]
    pub(super) evidence: Option<Evidence>,
    /// Number of worker threads
    #[arg(long, default_value_t = defaults::WORKERS, value_name = "N", help_heading = GENERATOR)]
    workers: usize,
    /// Time to poll the clock before each request, instead of sleeping; lowers send lag, but may use one CPU per worker
    #[arg(long, default_value = "0s", value_parser = super::super::parse_duration, value_name = "D", help_heading = GENERATOR)]
    spin: Duration,
    /// DNS servers to use instead of the system's
    #[arg(long, value_name = "ADDRESS[:PORT]", value_delimiter = ',', value_parser = dns_server, help_heading = CONNECTIONS)]
    dns_servers: Vec<SocketAddr>,
    /// Use only IPv4 addresses
    #[arg(short = '4', long, help_heading = CONNECTIONS)]
    ipv4: bool,
    /// Use only IPv6 addresses
    #[arg(short = '6', long, conflicts_with = "ipv4", help_heading = CONNECTIONS)]
    ipv6: bool,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Run directory to write; it must be new or empty
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// File to write all requests to: csv=FILE, vegeta-csv=FILE or vegeta-json=FILE; repeatable
    #[arg(long, value_name = "FORMAT=FILE", help_heading = RESULT)]
    pub(super) record: Vec<Record>,
    /// File for the percentiles of response times, in the format of HdrHistogram's plotter
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    pub(super) hgrm: Option<PathBuf>,
    /// Exit with status 1 above this limit, such as dropped>0.1%, p99>200ms or connect_refused>0; repeatable
    #[arg(long, value_name = "METRIC>LIMIT", help_heading = RESULT)]
    pub(super) fail_on: Vec<FailOn>,
    /// Format of the result on stdout
    #[arg(long, value_enum, default_value_t = LoadFormat::Text)]
    pub(super) format: LoadFormat,
    /// Show no progress on stderr
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl LoadArgs {
    /// Makes the settings, including values from files and the environment.
    pub(in super::super) fn settings(&self) -> anyhow::Result<Load> {
        let read = |path: &Path| match path.to_str() {
            Some("-") => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
            }
            _ => std::fs::read(path),
        };
        let targets = match &self.targets {
            None => self.urls.iter().map(|url| LoadTarget::new(url.as_str(), url.as_str())).collect(),
            Some(path) => {
                let failed = || format!("failed to read the targets in {}", path.display());
                let text = String::from_utf8(read(path).with_context(failed)?).with_context(failed)?;
                targets_file::parse(&text, |body| read(Path::new(body))).with_context(failed)?
            }
        };
        let body = match (&self.body_file, self.body_hex.as_ref().or(self.body_base64.as_ref())) {
            (Some(path), _) => {
                read(path).with_context(|| format!("failed to read the body file {}", path.display()))?
            }
            (None, Some(bytes)) => bytes.clone(),
            (None, None) => self.body.clone().into_bytes(),
        };
        let grpc = self.grpc.as_ref();
        let is_websocket =
            |target: &LoadTarget| target.url.starts_with("ws://") || target.url.starts_with("wss://");
        let connections = match self.connections {
            Some(connections) => connections,
            None if targets.iter().all(is_websocket) || self.is_closed_loop() => Connections::KEEPALIVE,
            None => Connections::FRESH,
        };
        Ok(Load {
            targets,
            headers: self.headers()?,
            template: self.template,
            success: self.success.clone(),
            pod_header: self.pod_header.clone(),
            pod_body: self.pod_body.as_ref().map(PodBody::to_string),
            keep_headers: keep_headers(&self.keep_headers),
            connect_to: self.connect_to.clone(),
            unix_socket: self.unix_socket.clone(),
            dns: DnsSettings { servers: self.dns_servers.clone(), family: self.family() },
            tls: self.tls.settings()?,
            retry: Retry { times: self.retry, delay: self.retry_delay },
            body,
            pace: self.pace(),
            arrivals: if self.poisson { Arrivals::Poisson } else { Arrivals::Even },
            seed: self.seed.unwrap_or_else(rand::random),
            warmup: self.warmup,
            http: self.http,
            stream: self.stream.settings(),
            grpc: grpc.map(|rpc| Grpc { rpc: rpc.clone(), success: self.grpc_success.clone() }),
            connections: Connections {
                mode: connections.mode,
                share: connections.share,
                max: self.max_connections,
                max_concurrent_streams: self.max_concurrent_streams,
                max_requests: self.max_requests,
                max_age: self.max_age,
            },
            timeout: Timeouts {
                connect: self.connect_timeout,
                tls: self.tls_timeout,
                first_byte: self.first_byte_timeout,
                response: self.response_timeout,
            },
            method: self.method.clone(),
            workers: self.workers,
            spin: self.spin,
            source_ports: self.source_ports,
            source_addresses: self.source_addresses.clone(),
            reuse_ports: self.reuse_ports,
            evidence: self.evidence,
        })
    }

    /// Returns a number given as a URL together with `-q`. In other tools, `-q` takes a rate.
    pub(in super::super) fn rate_after_quiet(&self) -> Option<&str> {
        let is_number = |url: &&str| url.parse::<f64>().is_ok();
        self.urls.iter().map(String::as_str).find(is_number).filter(|_| self.quiet)
    }

    /// Returns true if connections send as fast as they can. With fresh connections, such a load would mostly measure
    /// connecting.
    fn is_closed_loop(&self) -> bool {
        self.stages.is_empty() && self.rate == Rate::Max
    }

    fn family(&self) -> Family {
        match (self.ipv4, self.ipv6) {
            (true, _) => Family::Ipv4,
            (_, true) => Family::Ipv6,
            _ => Family::Any,
        }
    }

    fn pace(&self) -> Pace {
        match (self.rate, self.requests) {
            _ if !self.stages.is_empty() => Pace::Open(self.stages.clone()),
            (Rate::Max, Some(requests)) => Pace::Closed(Length::Requests(requests)),
            (Rate::Max, None) => Pace::Closed(Length::Time(self.duration)),
            (Rate::PerSecond(rate), Some(requests)) => Pace::constant_count(rate, requests),
            (Rate::PerSecond(rate), None) => Pace::constant(rate, self.duration),
        }
    }

    fn headers(&self) -> anyhow::Result<Vec<(String, Secret)>> {
        let mut headers = Vec::new();
        for (number, given) in (1..).zip(&self.headers) {
            match given.strip_prefix('@') {
                None => headers.push(request_text::header(given).with_context(|| {
                    format!("header number {number} (-H) does not have the form 'Name: value'")
                })?),
                Some(path) => {
                    let lines = std::fs::read_to_string(path);
                    let lines = lines.with_context(|| format!("failed to read the headers in {path}"))?;
                    headers.extend(
                        request_text::headers(&lines).map_err(|why| anyhow::anyhow!("{path}: {why}"))?,
                    );
                }
            }
        }
        for given in &self.header_from_env {
            let (name, variable) = given.split_once('=').with_context(|| {
                format!("--header-from-env {given:?} does not have the form NAME=VARIABLE, such as Authorization=TOKEN")
            })?;
            let value = std::env::var(variable).with_context(|| {
                format!("failed to read header {name} from the environment variable {variable}")
            })?;
            headers.push((name.trim().to_owned(), value.trim().into()));
        }
        Ok(headers)
    }
}

fn default_success() -> String {
    let (from, to) = defaults::SUCCESS;
    format!("{from}-{to}")
}

fn parse_statuses(text: &str) -> Result<(u16, u16), String> {
    statuses(text).ok_or_else(|| "expected statuses and ranges, such as 200-299,404".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_single_or_ranges() {
        assert_eq!((parse_statuses("404"), parse_statuses("200-299")), (Ok((404, 404)), Ok((200, 299))));
        assert!(parse_statuses("2xx").is_err());
    }
}
