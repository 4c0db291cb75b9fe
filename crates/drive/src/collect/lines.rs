//! Lines of a stream from an untrusted writer. A line that is too long is never held in memory as a whole.

use std::io;

use futures::{AsyncBufRead, AsyncBufReadExt, Stream, stream};

/// Maximum length of a proxy's line, in bytes. The longest lines contain the termination messages of containers.
pub(crate) const LINE_BYTES: usize = 64 * 1024;

/// Returns the lines up to the first one that is longer than [`LINE_BYTES`], which is returned as an error, or up to an
/// error of the reader.
pub(crate) fn lines(reader: impl AsyncBufRead + Unpin) -> impl Stream<Item = io::Result<String>> {
    stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match next(&mut reader).await {
            Ok(Some(line)) => Some((Ok(line), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Returns the next line without its newline. Text after the last newline does not count as a line.
async fn next(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    loop {
        let piece = reader.fill_buf().await?;
        if piece.is_empty() {
            return Ok(None);
        }
        let end = memchr::memchr(b'\n', piece);
        let taken = end.unwrap_or(piece.len());
        if line.len() + taken > LINE_BYTES {
            let why = format!("a line is longer than {LINE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        line.extend_from_slice(&piece[..taken]);
        reader.consume_unpin(taken + usize::from(end.is_some()));
        if end.is_some() {
            let text = String::from_utf8(line);
            return text.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::io::BufReader;

    use super::*;

    async fn read(text: &[u8], buffer: usize) -> Vec<Result<String, io::ErrorKind>> {
        let lines =
            lines(BufReader::with_capacity(buffer, text)).map(|line| line.map_err(|error| error.kind()));
        lines.collect().await
    }

    #[tokio::test]
    async fn reader_stops_at_overlong_line() {
        let ok = |line: &str| Ok(line.to_owned());
        let longest = "x".repeat(LINE_BYTES);
        for buffer in [1, 7, 1 << 20] {
            assert_eq!(read(b"a\n\nbc\nno end", buffer).await, [ok("a"), ok(""), ok("bc")]);
            let text = format!("{longest}\n{longest}y\nb\n");
            assert_eq!(read(text.as_bytes(), buffer).await, [ok(&longest), Err(io::ErrorKind::InvalidData)]);
            assert_eq!(read(b"a\n\xff\nb\n", buffer).await, [ok("a"), Err(io::ErrorKind::InvalidData)]);
        }
    }
}
