//! The names of a trace, and generated names for missing ones.

use std::collections::HashMap;

use crate::trace::model::NameId;

/// Maximum of generated names, for numbers that the recording has no name for; further numbers share one.
const MADE_UP_MAX: usize = 1 << 16;

/// The subject of a name, from which one can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Of the task with this number.
    Task(u32),
    /// Of a device.
    Device,
    /// Of a counter.
    Counter,
    /// Of the span with this number.
    Span(u64),
    /// Of a span that started before the trace.
    OldSpan(u64),
    /// Of a span whose start may be among lost events.
    LostSpan(u64),
    /// Anything else.
    Other,
}

/// Names by number, from the guest, with generated ones after them.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) texts: Vec<String>,
    /// Numbers below are the guest's.
    known: u32,
    made_up: HashMap<(Role, u32), NameId>,
    overflow: Option<NameId>,
    were_lost: bool,
}

impl Names {
    pub(super) fn new(names: &[String], names_lost: u32) -> Names {
        let mut texts = names.to_vec();
        match texts.first_mut() {
            Some(first) => first.clear(),
            None => texts.push(String::new()),
        }
        let known = texts.len() as u32;
        Names { texts, known, made_up: HashMap::new(), overflow: None, were_lost: names_lost > 0 }
    }

    /// The name with the guest's number, or one generated for `role`. Without a number and a role there is none.
    pub(super) fn id(&mut self, number: u32, role: Role) -> NameId {
        let is_known = number < self.known && !self.texts[number as usize].is_empty();
        if is_known || (number == 0 && role == Role::Other) {
            return number;
        }
        // What has a number of a name shares it with others that have the same.
        let role = match role {
            Role::Device | Role::Counter | Role::Span(_) if number != 0 => Role::Other,
            role => role,
        };
        let key = (role, number);
        if let Some(id) = self.made_up.get(&key) {
            return *id;
        }
        if self.made_up.len() >= MADE_UP_MAX {
            return *self.overflow.get_or_insert_with(|| {
                self.texts.push("(one of very many without a name)".into());
                self.texts.len() as NameId - 1
            });
        }
        self.texts.push(self.make_up(number, role));
        let id = self.texts.len() as NameId - 1;
        self.made_up.insert(key, id);
        id
    }

    /// A name of ours, which is in no table of the guest.
    pub(super) fn add(&mut self, text: &str) -> NameId {
        self.texts.push(text.into());
        self.texts.len() as NameId - 1
    }

    fn make_up(&self, number: u32, role: Role) -> String {
        let said = match (role, number) {
            (Role::Task(task), _) => return format!("task {task}"),
            (Role::OldSpan(span), _) => return format!("span {span} (it started before the trace)"),
            (Role::LostSpan(span), _) => return format!("span {span} (its start was lost)"),
            (Role::Span(span), 0) => format!("span {span}"),
            (Role::Device, 0) => "device without a name".into(),
            (Role::Counter, 0) => "counter without a name".into(),
            (_, number) => format!("name {number}"),
        };
        match self.were_lost {
            true => format!("{said} (the guest's table of names was full)"),
            false => said,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_names_say_why() {
        let mut names = Names::new(&[String::new(), "disk 0".into(), String::new()], 3);
        assert_eq!(names.id(1, Role::Device), 1);
        assert_eq!(names.id(0, Role::Other), 0);
        for (number, role, text) in [
            (0, Role::Task(17), "task 17"),
            (5, Role::Counter, "name 5 (the guest's table of names was full)"),
            (2, Role::Other, "name 2 (the guest's table of names was full)"),
            (0, Role::Counter, "counter without a name (the guest's table of names was full)"),
        ] {
            let id = names.id(number, role);
            assert_eq!(names.texts[id as usize], text);
            assert_eq!(names.id(number, role), id);
        }
        assert_eq!(names.id(5, Role::Span(1)), names.id(5, Role::Span(2)));
        let mut names = Names::new(&[], 0);
        let id = names.id(5, Role::Other);
        assert_eq!(names.texts[id as usize], "name 5");
    }

    #[test]
    fn names_that_are_made_up_are_bounded() {
        let mut names = Names::new(&[], 0);
        for task in 0..2 * MADE_UP_MAX as u32 {
            names.id(0, Role::Task(task));
        }
        assert!(names.texts.len() <= MADE_UP_MAX + 2);
    }
}
