//! `rolldrop proxy`.

use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio_util::task::AbortOnDropHandle;

use super::admin_token::TokenArgs;
use super::named_values::one_of;
use super::open_files::raise_open_files;
use super::say::say;
use super::signals::SignalListener;
use rolldrop_drive::Interrupts;
use rolldrop_record::Clock;
use rolldrop_sidecar::{
    Access, Budget, PodHeader, Proxy, ProxyConfig, ProxyCounts, ProxyReport, TrafficMode, WatchPod,
};

/// Arguments of `rolldrop proxy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    rolldrop proxy --listen 0.0.0.0:8081 --upstream 127.0.0.1:8080 --admin 127.0.0.1:8082 --open-admin --pod web-1\n  \
    curl http://127.0.0.1:8082/metrics            counts of outcomes; /rows has each request\n\n\
    On SIGTERM it drains, hands its remaining rows to the run or watch that collects them, and exits with status 0.")]
pub(super) struct ProxyArgs {
    /// Addresses to listen on for clients, separated by commas; only the last one needs a port, which then is that of all
    #[arg(long, value_name = "ADDR,...", value_parser = listen_addresses)]
    listen: ListenAddresses,
    /// Protocol of connections: http (also HTTP/2, and TLS that the app terminates), or tcp to record only connections
    #[arg(long, value_name = "MODE", default_value = "http", value_parser = one_of(&MODES), hide_possible_values = true)]
    mode: TrafficMode,
    /// Address of the app
    #[arg(long, value_name = "ADDR", value_parser = address)]
    upstream: SocketAddr,
    /// Address for the admin port: /healthz and /readyz, and with the token /clock, /rows and /metrics
    #[arg(long, env = "ROLLDROP_ADMIN", value_name = "ADDR", value_parser = address)]
    admin: SocketAddr,
    /// Name of the proxy's pod; in front of a Service, any name
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod: String,
    /// Readiness path of the app; without it, an app that accepts connections is ready
    #[arg(long, value_name = "PATH")]
    app_ready_path: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// Open the admin port to everyone if there is no token, but without clients' addresses
    #[arg(long)]
    open_admin: bool,
    /// Time to keep accepting connections after the app is gone, to record late ones
    #[arg(long, value_name = "D", default_value = "500ms", value_parser = super::parse_duration)]
    linger: Duration,
    /// Watch this pod's object: auto (if a service account is mounted; it needs permission to list and watch pods), or
    /// off
    #[arg(long, value_name = "WHEN", env = "ROLLDROP_WATCH_POD", default_value = "auto", value_parser = one_of(&WATCHES))]
    #[arg(hide_possible_values = true)]
    watch_pod: WatchPod,
    /// Number of relaying threads; one is cheapest, and handles tens of thousands of requests a second
    #[arg(long, value_name = "N", default_value = "1")]
    workers: NonZeroUsize,
    /// Maximum number of client connections, if the limit on open files allows as many.
    ///
    /// At the limit, a new connection replaces the one that has been idle the longest, or waits in the accept queue if
    /// none is idle. Other limits: 24 MiB in total for unfinished heads and frames beyond 4 KiB per connection and
    /// direction; 32 MiB in the kernel beyond 6 KiB per socket and direction; 1 MiB per head; 4096 requests in flight
    /// per connection and 65536 in total; 250000 rows that wait for a reader.
    #[arg(long, value_name = "N", default_value = "4096")]
    max_connections: NonZeroUsize,
    /// Do not add the rolldrop-pod header to responses
    #[arg(long)]
    no_pod_header: bool,
}

const MODES: [(&str, &str, TrafficMode); 2] =
    [("http", "HTTP", TrafficMode::Http), ("tcp", "Any protocol", TrafficMode::Tcp)];
const WATCHES: [(&str, &str, WatchPod); 2] =
    [("auto", "With a service account", WatchPod::Auto), ("off", "Never", WatchPod::Off)];

impl ProxyArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut runtime = match self.workers.get() {
            1 => tokio::runtime::Builder::new_current_thread(),
            workers => {
                let mut runtime = tokio::runtime::Builder::new_multi_thread();
                runtime.worker_threads(workers);
                runtime
            }
        };
        let runtime = runtime.enable_all().build().context("failed to start the runtime")?;
        runtime.block_on(async {
            let signals = SignalListener::begin().context("failed to listen for signals")?;
            let Interrupts { stop, abort } = &signals.interrupts;
            let config = self.config()?;
            if matches!(config.admin_access, Access::Nobody) {
                say(
                    "there is no token, so no one can read the records (--open-admin opens them to everyone)",
                );
            }
            let proxy = Proxy::bind(config, Clock::start())?;
            say(&format!("proxy on {}, admin on {}", proxy.local_addr(), proxy.admin_addr()));
            // Spawned as a task like the others; with several threads, connections then reach their tasks directly.
            let run = proxy.run(stop.clone().cancelled_owned(), abort.clone().cancelled_owned());
            say(&summary(&AbortOnDropHandle::new(tokio::spawn(run)).await?));
            Ok(ExitCode::SUCCESS)
        })
    }

    fn config(self) -> anyhow::Result<ProxyConfig> {
        let ListenAddresses { also, last } = self.listen;
        let listening = also.iter().chain([&last]).map(|own| ("--listen", *own));
        for (option, own) in listening.chain([("--admin", self.admin)]) {
            if leads_to(self.upstream, own) {
                bail!(
                    "--upstream {} leads back to the proxy itself ({option} {own}): use the app's own address",
                    self.upstream
                );
            }
        }
        Ok(ProxyConfig {
            mode: self.mode,
            listen: last,
            also_listen: also,
            upstream: self.upstream,
            admin: self.admin,
            pod: self.pod,
            pod_header: if self.no_pod_header { PodHeader::Omitted } else { PodHeader::Added },
            app_ready_path: self.app_ready_path,
            admin_access: match self.token.token()? {
                Some(token) => Access::Holders(token),
                None if self.open_admin => Access::Everybody,
                None => Access::Nobody,
            },
            watch_pod: self.watch_pod,
            linger: self.linger,
            budget: Budget {
                connections: self.max_connections.get().min(most_connections()),
                ..Budget::DEFAULT
            },
        })
    }
}

/// Returns the number of connections that the limit on open files allows; each needs one file for the client and one
/// for the app.
fn most_connections() -> usize {
    /// Files for everything else, including the admin port's connections.
    const OTHERS: u64 = 64;

    usize::try_from(raise_open_files().saturating_sub(OTHERS) / 2).unwrap_or(usize::MAX).max(1)
}

/// Parses an address as written in manifests, where `$(POD_IP):8080` puts no brackets around an IPv6 address.
pub(super) fn address(text: &str) -> Result<SocketAddr, AddrParseError> {
    text.parse().or_else(|error| {
        let parts = text.rsplit_once(':');
        let plain =
            parts.and_then(|(ip, port)| Some((ip.parse::<Ipv6Addr>().ok()?, port.parse::<u16>().ok()?)));
        plain.map(SocketAddr::from).ok_or(error)
    })
}

/// Addresses of the data port.
#[derive(Clone, Debug)]
struct ListenAddresses {
    also: Vec<SocketAddr>,
    last: SocketAddr,
}

/// Parses a list of addresses as written in manifests, where `$(POD_IPS):8080` is `10.0.0.1,fd00::1:8080`.
fn listen_addresses(text: &str) -> Result<ListenAddresses, AddrParseError> {
    let (also, last) = text.rsplit_once(',').unwrap_or(("", text));
    let last = address(last)?;
    let with_port = |text: &str| match text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, last.port())),
        Err(_) => text.parse(),
    };
    let also = also.split(',').filter(|text| !text.is_empty()).map(with_port).collect::<Result<_, _>>()?;
    Ok(ListenAddresses { also, last })
}

/// Returns true if a connection to `upstream` would reach the listener at `own`.
fn leads_to(upstream: SocketAddr, own: SocketAddr) -> bool {
    let (to, own_ip) = (upstream.ip().to_canonical(), own.ip().to_canonical());
    // A connection to the unspecified address reaches this host over loopback (ip(7)).
    let to = match to {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    // The unspecified IPv6 address covers IPv4 too, unless the system is configured otherwise.
    let takes_all = own_ip.is_unspecified() && (own_ip.is_ipv6() || to.is_ipv4());
    let is_here = || to.is_loopback() || TcpListener::bind((to, 0)).is_ok();
    own.port() != 0 && own.port() == upstream.port() && (own_ip == to || (takes_all && is_here()))
}

fn summary(report: &ProxyReport) -> String {
    let ProxyCounts { recorded, handed_over, dropped, .. } = report.counts;
    format!(
        "{recorded} requests on {} connections; {handed_over} rows handed over, {dropped} dropped",
        report.connections,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_recognises_itself_as_upstream() {
        let leads = |upstream: &str, own: &str| leads_to(upstream.parse().unwrap(), own.parse().unwrap());
        for (upstream, own) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1:80", "0.0.0.0:80"),
            ("127.9.9.9:80", "[::]:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("10.1.2.3:80", "10.1.2.3:80"),
        ] {
            assert!(leads(upstream, own), "{upstream} {own}");
        }
        for (upstream, own) in [
            ("127.0.0.1:80", "127.0.0.1:81"),
            ("127.0.0.2:80", "127.0.0.1:80"),
            // A documentation address, which this host does not have.
            ("192.0.2.1:80", "0.0.0.0:80"),
            ("[::1]:80", "0.0.0.0:80"),
            ("127.0.0.1:80", "127.0.0.1:0"),
        ] {
            assert!(!leads(upstream, own), "{upstream} {own}");
        }
    }

    #[test]
    fn listen_addresses_share_last_port() {
        let listened = |text: &str| {
            let ListenAddresses { also, last } = listen_addresses(text)?;
            Ok::<_, AddrParseError>(also.iter().chain([&last]).map(SocketAddr::to_string).collect::<Vec<_>>())
        };
        for (text, expected) in [
            ("10.0.0.1:80", &["10.0.0.1:80"][..]),
            ("fd00::1:80", &["[fd00::1]:80"]),
            ("10.0.0.1,fd00::1:80", &["10.0.0.1:80", "[fd00::1]:80"]),
            ("fd00::1:2,10.0.0.1:80", &["[fd00::1:2]:80", "10.0.0.1:80"]),
            ("127.0.0.1:81,[::1]:82,0.0.0.0:83", &["127.0.0.1:81", "[::1]:82", "0.0.0.0:83"]),
        ] {
            assert_eq!(listened(text).expect(text), expected);
        }
        for text in ["10.0.0.1,fd00::1", "web,10.0.0.1:80", "10.0.0.1:80,", "10.0.0.1:x,10.0.0.2:80"] {
            assert!(listened(text).is_err(), "{text}");
        }
    }

    #[test]
    fn address_accepts_unbracketed_ipv6() {
        for (text, address_is) in
            [("10.0.0.1:80", "10.0.0.1:80"), ("[fd00::1]:80", "[fd00::1]:80"), ("fd00::1:80", "[fd00::1]:80")]
        {
            assert_eq!(address(text).expect("an address").to_string(), address_is);
        }
        for text in ["", "80", "10.0.0.1", "web:80", "fd00::1:http", "fd00::1:99999"] {
            assert_eq!(address(text).expect_err(text).to_string(), "invalid socket address syntax");
        }
    }
}
