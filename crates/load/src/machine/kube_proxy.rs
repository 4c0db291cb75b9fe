//! Determines the mode of the kube-proxy on this node.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rolldrop_record::service_proxy::ServiceProxy;

/// Address on which kube-proxy serves its mode: only the node's loopback address.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
const LIMIT: Duration = Duration::from_secs(1);
const LONGEST: u64 = 4096;

/// Returns the mode of kube-proxy; `None` if no kube-proxy responds within a few seconds. Blocks in the meantime.
pub fn mode() -> Option<ServiceProxy> {
    asked(METRICS)
}

fn asked(address: SocketAddr) -> Option<ServiceProxy> {
    let answer = || {
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(format!("GET /proxyMode HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let answer = answer().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_ok = head.split_whitespace().nth(1) == Some("200");
    let said = ServiceProxy::from(body.trim());
    // Another program may be listening on this port.
    (is_ok && !matches!(said, ServiceProxy::Other(_) | ServiceProxy::Unknown)).then_some(said)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn proxy_mode_query_rejects_foreign_answers() {
        for (answer, mode) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnftables", Some(ServiceProxy::Nftables)),
            ("HTTP/1.1 200 OK\r\n\r\n<html>hello</html>", None),
            ("HTTP/1.1 404 Not Found\r\n\r\nipvs", None),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let serving = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap();
                assert!(request[..length].starts_with(b"GET /proxyMode "));
                stream.write_all(answer.as_bytes()).unwrap();
            });
            assert_eq!(asked(address), mode, "{answer}");
            serving.join().unwrap();
        }
        assert_eq!(asked(SocketAddr::from(([127, 0, 0, 1], 1))), None);
    }
}
