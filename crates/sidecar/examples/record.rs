//! Runs the recording proxy in front of a local app until Ctrl-C, then prints the counts:
//!
//! ```sh
//! cargo run --release -p rolldrop-sidecar --example record -- 127.0.0.1:8080 127.0.0.1:9090
//! ```
//!
//! Clients that connect to the second address reach the app at the first one. The rows are available from the admin
//! port.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rolldrop_record::Clock;
use rolldrop_sidecar::{Access, Budget, PodHeader, Proxy, ProxyConfig, TrafficMode, WatchPod};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [app, own] = [1, 2].map(|number| std::env::args().nth(number));
    let config = ProxyConfig {
        mode: TrafficMode::Http,
        upstream: app.ok_or("missing argument: the address of the app")?.parse()?,
        listen: own.ok_or("missing argument: the address to listen on")?.parse()?,
        also_listen: Vec::new(),
        admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        pod: "my-app".to_owned(),
        pod_header: PodHeader::Added,
        app_ready_path: None,
        admin_access: Access::Everybody,
        watch_pod: WatchPod::Off,
        linger: Duration::ZERO,
        budget: Budget::DEFAULT,
    };
    let proxy = Proxy::bind(config, Clock::start())?;
    println!("proxy on {}, rows at http://{}", proxy.local_addr(), proxy.admin_addr());
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let report = proxy.run(stop, std::future::pending()).await;
    println!("{} requests on {} connections", report.counts.recorded, report.connections);
    Ok(())
}
