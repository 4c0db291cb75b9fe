//! Fuzz targets for the data that the coordinator reads from a proxy.

use crate::wire::{ClockAnswer, ProxyLine};

rolldrop_testing::targets! {
    row_stream: super::row_stream,
}

/// Checks that a parsable line keeps its meaning when it is serialized again.
fn row_stream(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(line) = serde_json::from_slice::<ProxyLine>(line) {
            let again = serde_json::to_string(&line).ok();
            let again = again.and_then(|text| serde_json::from_str::<ProxyLine>(&text).ok());
            assert_eq!(again, Some(line));
        }
        let _ = serde_json::from_slice::<ClockAnswer>(line);
    }
}
