//! Tables of a text and of a page, and how they are compared.

use crate::support::browser::Browser;
use serde_json::json;

/// A table as it is printed: headings, then cells by row.
#[derive(Debug)]
pub struct Printed {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

fn cells(line: &str) -> Vec<String> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

/// The first table below the line of a text that begins with `title`.
pub fn printed(text: &str, title: &str) -> Printed {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    let head = lines.find(|line| line.starts_with("  ")).unwrap_or_else(|| panic!("there is no {title:?} in\n{text}"));
    let body = lines.take_while(|line| line.starts_with("  ") && !line.contains(" more"));
    // Long tables have their headings again and again.
    let rows = body.map(cells).filter(|row| *row != cells(head)).collect();
    Printed { head: cells(head), rows }
}

/// A table of the page: headings and cells as they are shown.
pub fn shown(browser: &mut Browser, table: &str) -> Printed {
    while browser.eval(&format!("document.querySelector('{table} .more') !== null")) == json!(true) {
        browser.click(&format!("{table} .more"));
    }
    let read = |selector: &str| format!("[...document.querySelectorAll('{table} {selector}')]");
    let head = browser.eval(&format!("{}.map((cell) => cell.textContent)", read("thead th")));
    let rows = browser
        .eval(&format!("{}.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))", read("tbody tr")));
    Printed {
        head: serde_json::from_value(head).expect("headings"),
        rows: serde_json::from_value(rows).expect("rows of texts"),
    }
}

/// Every row of the text is in the page, with the same cells below the same headings.
pub fn same(text: &Printed, page: &Printed) {
    assert!(!text.rows.is_empty(), "{text:?}");
    let column = |name: &String| {
        let place = page.head.iter().position(|head| head == name);
        place.unwrap_or_else(|| panic!("no column {name:?} in {:?}", page.head))
    };
    let columns: Vec<usize> = text.head.iter().map(column).collect();
    let is_same = |row: &[String], other: &[String]| {
        // What has no room in the text is cut.
        row.iter().zip(&columns).all(|(cell, column)| match cell.strip_suffix('…') {
            Some(start) => other[*column].starts_with(start),
            None => other[*column] == *cell,
        })
    };
    for row in &text.rows {
        assert_eq!(row.len(), columns.len(), "{row:?} below {:?}", text.head);
        let is_there = page.rows.iter().any(|other| is_same(row, other));
        assert!(is_there, "text {:?} {row:?} is not in the page: {:?} {:#?}", text.head, page.head, page.rows);
    }
}

/// A text in one line, without more than one space at a place: as a page shows a sentence that a terminal wraps.
pub fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
