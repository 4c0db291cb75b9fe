//! Fuzz target: the first line of the input names a format, and the lines after it are a log.

use crate::{LONGEST_LINE, LogFormat};

rolldrop_testing::targets! {
    access_log: super::read_log,
}

fn read_log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (name, _) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(format) = name.parse::<LogFormat>() else { return };
    assert_eq!(format.to_string().parse().as_ref(), Ok(&format));
    for line in bytes.split(|b| *b == b'\n').skip(1) {
        let Ok(Some(request)) = format.parse(line) else { continue };
        assert!(request.earliest <= request.latest);
        assert!(request.status.is_none_or(|status| (100..1000).contains(&status)));
        assert!(request.attempts.len() <= LONGEST_LINE / 2);
        let route = request.route.as_deref().unwrap_or_default();
        assert!(!route.contains(|c: char| c.is_control()));
    }
}
