//! Collects the errors of one object, and makes the checks that several kinds share.

use serde_json::{Value, json};

use crate::status::FieldError;

/// The errors found so far.
#[derive(Default)]
pub(super) struct Errors {
    pub(super) list: Vec<FieldError>,
}

impl Errors {
    fn push(&mut self, error: FieldError) {
        if !self.list.contains(&error) {
            self.list.push(error);
        }
    }

    pub(super) fn required(&mut self, field: &str, why: &str) {
        self.push(FieldError::required(field, why));
    }

    pub(super) fn invalid(&mut self, field: &str, value: &Value, why: &str) {
        self.push(FieldError::invalid(field, value, why));
    }

    pub(super) fn unsupported(&mut self, field: &str, value: &Value, supported: &[&str]) {
        self.push(FieldError::unsupported(field, value, supported));
    }

    pub(super) fn duplicate(&mut self, field: &str, value: &Value) {
        self.push(FieldError::duplicate(field, value));
    }

    pub(super) fn not_found(&mut self, field: &str, value: &Value) {
        self.push(FieldError::not_found(field, value));
    }

    pub(super) fn forbidden(&mut self, field: &str, why: &str) {
        self.push(FieldError::forbidden(field, why));
    }

    pub(super) fn too_long(&mut self, field: &str, why: &str) {
        self.push(FieldError::too_long(field, why));
    }

    /// Checks that a number is missing or not negative.
    pub(super) fn check_not_negative(&mut self, holder: &Value, path: &str, name: &str) {
        if holder[name].as_i64().is_some_and(|number| number < 0) {
            self.invalid(&format!("{path}.{name}"), &holder[name], "must be greater than or equal to 0");
        }
    }

    pub(super) fn check_port_number(&mut self, port: &Value, field: &str) {
        if !port.as_i64().is_some_and(|port| (1..=65_535).contains(&port)) {
            self.invalid(field, port, "must be between 1 and 65535, inclusive");
        }
    }

    /// Checks a port, given by number or by name.
    pub(super) fn check_port(&mut self, port: &Value, field: &str) {
        match port.as_str() {
            Some(name) => self.check_port_name(name, field),
            None => self.check_port_number(port, field),
        }
    }

    pub(super) fn check_port_name(&mut self, name: &str, field: &str) {
        let value = json!(name);
        if name.is_empty() || name.len() > 15 {
            self.invalid(field, &value, "must be no more than 15 characters");
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.chars().all(allowed) || !name.chars().any(|c| c.is_ascii_lowercase()) {
            let why = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), and at least one letter";
            self.invalid(field, &value, why);
        }
    }

    /// Checks that a value is one of a few.
    pub(super) fn check_one_of(&mut self, value: &Value, field: &str, supported: &[&str]) {
        if value.as_str().is_none_or(|value| !supported.contains(&value)) {
            self.unsupported(field, value, supported);
        }
    }
}

pub(super) fn elements<'a>(object: &'a Value, list: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    object[list].as_array().into_iter().flatten().enumerate()
}

pub(super) fn is_blank(value: &Value) -> bool {
    value.as_str().is_none_or(str::is_empty)
}
