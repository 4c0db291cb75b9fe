//! Uncounted clients that try to make the proxy hold as many resources as possible.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;

use super::one_of;
use crate::strangers::attacks::{Attack, Client};

/// Runs one attack after another.
pub(super) async fn client(proxy: SocketAddr, end: Instant, mut rng: StdRng) {
    while Instant::now() < end {
        let attack = one_of(&mut rng, &Attack::ALL);
        let lasts = Duration::from_millis(rng.random_range(10..15_000));
        // The result does not matter, because the proxy, the app and the attack itself may each end the attack.
        let client = one_of(&mut rng, &[Client::Leaves, Client::Stays]);
        let _ = attack.run(proxy, end.min(Instant::now() + lasts).into(), client).await;
    }
}
