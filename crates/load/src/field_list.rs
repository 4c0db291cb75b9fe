//! A list of header fields in one buffer, which is reused from response to response.

use std::str;

/// Header fields in the order in which they arrived. Names are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldList {
    bytes: Vec<u8>,
    /// End of each name and of its value in `bytes`; a field begins where the one before ends.
    ends: Vec<(usize, usize)>,
}

impl FieldList {
    /// Maximum capacity to keep for the next response, in bytes.
    const MOST_KEPT: usize = 4096;

    /// Removes all fields.
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() + self.ends.capacity() > Self::MOST_KEPT {
            *self = Self::default();
        }
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a field.
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end, self.bytes.len()));
    }

    /// Returns all fields.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let field = |(begin, (name_end, end)): (usize, &(usize, usize))| {
            (&self.bytes[begin..*name_end], &self.bytes[*name_end..*end])
        };
        begins.zip(&self.ends).map(field)
    }

    /// Returns the values of all fields with this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(given, _)| *given == name.as_bytes()).map(|(_, value)| value)
    }

    /// Returns the value of the first field with this name.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// Returns the value of the first field with this name, if it is visible ASCII text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let is_visible = |byte: &u8| (b' '..=b'~').contains(byte) || *byte == b'\t';
        self.get(name)
            .filter(|value| value.iter().all(is_visible))
            .and_then(|value| str::from_utf8(value).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_list_finds_fields_by_name() {
        let mut list = FieldList::default();
        for round in 0..2 {
            list.clear();
            assert_eq!(list.iter().count(), 0, "{round}");
            list.push(b"via", b"1.1 a");
            list.push(b"server", b"");
            list.push(b"via", b"1.1 \xff");
            assert_eq!(list.all("via").collect::<Vec<_>>(), [&b"1.1 a"[..], b"1.1 \xff"]);
            assert_eq!(
                (list.get("server"), list.get("vi"), list.text("via")),
                (Some(&b""[..]), None, Some("1.1 a"))
            );
        }
        list.push(b"big", &[0; 2 * FieldList::MOST_KEPT]);
        list.clear();
        assert!(list.bytes.capacity() <= FieldList::MOST_KEPT);
    }
}
