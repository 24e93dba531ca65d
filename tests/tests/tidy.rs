//! Files stay small, functions too, each file says what it is, and names say what belongs where.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::Visit;

const MAX_FILE_LINES: usize = 400;
const MAX_FUNCTION_LINES: usize = 70;
/// Names that do not say what does not belong there.
const BANNED: &[&str] = &[
    "util", "utils", "helper", "helpers", "common", "core", "manager", "misc", "shared",
];

fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests/ is in the workspace")
        .to_owned()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_none_or(|it| it != "target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for folder in ["crates", "tests"] {
        rust_files(&workspace().join(folder), &mut files);
    }
    files.sort();
    assert!(files.len() > 20, "the workspace was not found");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("utf-8");
        let short = path.strip_prefix(workspace()).expect("inside").to_owned();
        (short, text)
    };
    files.into_iter().map(read).collect()
}

/// Lines that are neither blank nor only a comment.
fn code_lines<'a>(lines: impl Iterator<Item = &'a str>) -> usize {
    lines
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn no_file_has_more_than_four_hundred_lines_of_code() {
    let mut large = Vec::new();
    for (path, text) in sources() {
        let lines = code_lines(text.lines());
        if lines > MAX_FILE_LINES {
            large.push(format!("{}: {lines}", path.display()));
        }
    }

    assert_eq!(large, Vec::<String>::new());
}

/// Collects the functions of a file that are too long.
struct Functions<'a> {
    path: &'a Path,
    lines: Vec<&'a str>,
    long: Vec<String>,
}

impl Functions<'_> {
    fn check(&mut self, name: &syn::Ident, body: Span) {
        let (first, last) = (body.start().line, body.end().line);
        let lines = code_lines(self.lines[first - 1..last].iter().copied());
        if lines > MAX_FUNCTION_LINES {
            let path = self.path.display();
            self.long.push(format!("{path}:{first} {name}: {lines}"));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check(&function.sig.ident, function.block.span());
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check(&function.sig.ident, function.block.span());
        syn::visit::visit_impl_item_fn(self, function);
    }
}

#[test]
fn no_function_has_more_than_seventy_lines_of_code() {
    let mut long = Vec::new();
    for (path, text) in sources() {
        let file = syn::parse_file(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let mut functions = Functions {
            path: &path,
            lines: text.lines().collect(),
            long: Vec::new(),
        };
        functions.visit_file(&file);
        long.append(&mut functions.long);
    }

    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn every_file_opens_with_what_it_is() {
    let silent: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| path.display().to_string())
        .collect();

    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn no_file_or_folder_has_a_name_that_says_nothing() {
    let banned: Vec<String> = sources()
        .into_iter()
        .filter(|(path, _)| {
            path.with_extension("")
                .components()
                .any(|part| BANNED.iter().any(|banned| part.as_os_str() == *banned))
        })
        .map(|(path, _)| path.display().to_string())
        .collect();

    assert_eq!(banned, Vec::<String>::new());
}
