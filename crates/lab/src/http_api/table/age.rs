//! Formats durations as kubectl does: `51s`, `4m7s`, `3d2h`
//! (k8s.io/apimachinery/pkg/util/duration, `HumanDuration`).

use jiff::Timestamp;
use serde_json::Value;

/// Formats the time elapsed since `stamp`, an RFC 3339 string.
pub(super) fn since(stamp: &Value, now: Timestamp) -> String {
    seconds_between(stamp, now).map_or_else(|| "<unknown>".to_owned(), human)
}

/// Formats the time from `start` to `end`, both RFC 3339 strings. Returns an empty string if either is missing.
pub(super) fn between(start: &Value, end: &Value) -> String {
    let end: Option<Timestamp> = end.as_str().and_then(|end| end.parse().ok());
    end.and_then(|end| seconds_between(start, end)).map_or_else(String::new, human)
}

fn seconds_between(start: &Value, end: Timestamp) -> Option<i64> {
    let start: Timestamp = start.as_str()?.parse().ok()?;
    Some(end.duration_since(start).as_secs())
}

/// Formats `seconds`. Longer durations are less precise.
fn human(seconds: i64) -> String {
    const HOUR: i64 = 60;
    const DAY: i64 = 24;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / DAY, hours / DAY / 365);
    let two = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 2 * 60 {
        format!("{}s", seconds.max(0))
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 3 * HOUR {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % HOUR, 'm')
    } else if hours < 2 * DAY {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % DAY, 'h')
    } else if years < 2 {
        format!("{days}d")
    } else if years < 8 {
        two(years, 'y', days % 365, 'd')
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn older_ages_use_coarser_units() {
        const H: i64 = 3600;
        const D: i64 = 24 * H;
        for (seconds, shown) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (9 * 60 + 59, "9m59s"),
            (179 * 60, "179m"),
            (3 * H, "3h"),
            (7 * H + 59 * 60, "7h59m"),
            (47 * H, "47h"),
            (2 * D, "2d"),
            (7 * D + 23 * H, "7d23h"),
            (8 * D, "8d"),
            (729 * D, "729d"),
            (731 * D, "2y1d"),
            (8 * 365 * D, "8y"),
        ] {
            assert_eq!(human(seconds), shown);
        }
    }

    #[test]
    fn missing_timestamp_shows_as_unknown_age() {
        let now = "2026-11-21T00:01:00Z".parse().unwrap();
        assert_eq!(since(&json!("2026-11-21T00:00:09Z"), now), "51s");
        assert_eq!(since(&Value::Null, now), "<unknown>");
        assert_eq!(between(&json!("2026-11-21T00:00:00Z"), &json!("2026-11-21T00:00:05Z")), "5s");
        assert_eq!(between(&json!("2026-11-21T00:00:00Z"), &Value::Null), "");
    }
}
