//! Clients that try to make the proxy hold as much as possible, beside the counted ones.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;

use super::one_of;
use crate::strangers::attacks::{Attack, Client};

/// Runs one attack after the other.
pub(super) async fn client(proxy: SocketAddr, end: Instant, mut rng: StdRng) {
    while Instant::now() < end {
        let attack = one_of(&mut rng, &Attack::ALL);
        let lasts = Duration::from_millis(rng.random_range(10..15_000));
        // However it ends: the proxy, the app and the attack itself may end it.
        let client = one_of(&mut rng, &[Client::Leaves, Client::Stays]);
        let _ = attack.run(proxy, end.min(Instant::now() + lasts).into(), client).await;
    }
}
