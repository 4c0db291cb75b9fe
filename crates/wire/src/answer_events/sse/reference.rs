//! The same format, read as literally as possible: the standard's text, step by step, over the whole decoded stream. It
//! shares no code with the parser, which tests and fuzz targets compare with it.

/// Everything that a stream conveys: the name, data and last ID of each event, and the final settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) events: Vec<[String; 3]>,
    pub(crate) last_id: String,
    pub(crate) retry_ms: Option<u64>,
}

/// Reads a stream as specified in WHATWG HTML, 9.2.6.
pub(crate) fn read(stream: &[u8]) -> Told {
    let decoded = String::from_utf8_lossy(stream);
    let text = decoded.strip_prefix('\u{feff}').unwrap_or(&decoded).replace("\r\n", "\n").replace('\r', "\n");
    let mut told = Told::default();
    let (mut data, mut event_type, mut id) = (String::new(), String::new(), String::new());
    // Text after the last line end is not a line.
    let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    for line in lines.split('\n').take(text.matches('\n').count()) {
        if line.is_empty() {
            told.last_id.clone_from(&id);
            if let Some(data) = data.strip_suffix('\n') {
                let name = if event_type.is_empty() { "message" } else { &event_type };
                told.events.push([name.to_owned(), data.to_owned(), told.last_id.clone()]);
            }
            (data, event_type) = (String::new(), String::new());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event_type),
            "data" => data = data + value + "\n",
            "id" if !value.contains('\0') => value.clone_into(&mut id),
            "retry" if !value.is_empty() && value.chars().all(|digit| digit.is_ascii_digit()) => {
                told.retry_ms = Some(value.parse().unwrap_or(u64::MAX));
            }
            _ => {}
        }
    }
    told
}
