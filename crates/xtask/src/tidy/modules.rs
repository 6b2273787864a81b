//! The modules of one crate: what each declares, imports and names.
//!
//! A [`Crate`] is read from its `lib.rs` (or `main.rs`) on, along its `mod` items. PathCollector are
//! resolved as the compiler does it, as far as a tree of syntax allows: through `use` items,
//! re-exports and globs, to the module that defines the item. A re-export is no definition:
//! `super::Slab` is in `slab.rs` if the parent says `pub use slab::Slab`.
//!
//! Left out: code that `#[cfg(test)]` guards, methods (their types are not known), and items that
//! macros define; a path to one of these counts as a use of the module that should have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A path that a module names, and the line on which it does.
#[derive(Debug)]
pub struct NamedPath {
    /// Its segments, the first of which may be `crate`, `self` or `super`.
    pub path: Vec<String>,
    /// Counted from 1.
    pub line: usize,
}

/// One module, of a file of its own or within one.
#[derive(Debug, Default)]
pub struct Module {
    /// The module that declares it; none for the root.
    pub parent: Option<usize>,
    /// The file that it is in.
    pub file: PathBuf,
    /// Every path that its code names.
    pub named: Vec<NamedPath>,
    /// Has it a file of its own, or braces in its parent's?
    pub has_file: bool,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// The modules of a crate; the first one is its root.
#[derive(Debug, Default)]
pub struct Crate {
    /// In the order in which they are declared.
    pub modules: Vec<Module>,
}

/// Imports that lead to imports; more of them is a circle.
const DEEPEST: u32 = 16;

impl Crate {
    /// Reads the crate whose root is the source `root`; `read` gives a file's text if it exists.
    pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut krate = Crate::default();
        let text = read(root).with_context(|| format!("no {}", root.display()))?;
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        krate.add_file(None, root, &folder, &text, read)?;
        Ok(krate)
    }

    fn add_file(
        &mut self,
        parent: Option<usize>,
        file: &Path,
        folder: &Path,
        text: &str,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<Option<usize>> {
        let parsed = syn::parse_file(text).with_context(|| file.display().to_string())?;
        if parsed.attrs.iter().any(is_for_tests) {
            return Ok(None);
        }
        let module = self.add_module(parent, file, true);
        self.add_items(module, folder, &parsed.items, read)?;
        Ok(Some(module))
    }

    fn add_module(&mut self, parent: Option<usize>, file: &Path, has_file: bool) -> usize {
        self.modules.push(Module {
            parent,
            file: file.to_owned(),
            has_file,
            ..Module::default()
        });
        self.modules.len() - 1
    }

    fn add_items(
        &mut self,
        module: usize,
        folder: &Path,
        items: &[syn::Item],
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        for item in items {
            let syn::Item::Mod(declared) = item else {
                let mut names = PathCollector {
                    module: &mut self.modules[module],
                };
                if let Some(name) = name_of(item) {
                    names.module.items.insert(name);
                }
                names.visit_item(item);
                continue;
            };
            if declared.attrs.iter().any(is_for_tests) {
                continue;
            }
            let name = declared.ident.to_string();
            let below = folder.join(&name);
            let child = if let Some((_, items)) = &declared.content {
                let file = self.modules[module].file.clone();
                let child = self.add_module(Some(module), &file, false);
                self.add_items(child, &below, items, read)?;
                Some(child)
            } else {
                let beside = self.modules[module].file.with_file_name("");
                let files = match path_of(&declared.attrs) {
                    Some(path) => vec![beside.join(path)],
                    None => vec![below.join("mod.rs"), folder.join(format!("{name}.rs"))],
                };
                let found = files.iter().find_map(|file| Some((file, read(file)?)));
                let (file, text) = found
                    .with_context(|| format!("no file for `mod {name}` in {}", folder.display()))?;
                self.add_file(Some(module), file, &below, &text, read)?
            };
            if let Some(child) = child {
                self.modules[module].children.insert(name, child);
            }
        }
        Ok(())
    }

    /// The module that defines the item at the end of `path`, as `from` sees it; `None` if the path
    /// leads out of the crate or to a local variable.
    pub fn resolve(&self, from: usize, path: &[String]) -> Option<usize> {
        let place = self.walk(from, path, 0)?;
        let is_lone_module = path.len() == 1 && place.item.is_none();
        (!is_lone_module).then_some(place.module)
    }

    /// The nearest module with a file of its own: `module` or one above it.
    pub fn with_file(&self, mut module: usize) -> usize {
        while !self.modules[module].has_file {
            module = self.modules[module].parent.unwrap_or(0);
        }
        module
    }

    fn walk(&self, from: usize, path: &[String], depth: u32) -> Option<Resolution> {
        if depth > DEEPEST {
            return None;
        }
        let mut module = from;
        let mut rest = path;
        let mut is_anchored = false;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => module = 0,
                "self" => {}
                "super" => module = self.modules[module].parent?,
                _ => break,
            }
            is_anchored = true;
            rest = after;
        }
        while let Some((name, after)) = rest.split_first() {
            match self.look_up(module, name, after.is_empty(), depth) {
                Some(Resolution {
                    module,
                    item: Some(item),
                }) => {
                    return Some(Resolution {
                        module,
                        item: Some(item),
                    });
                }
                Some(found) => module = found.module,
                // Items that macros define are not seen: the module that should have them counts.
                None if is_anchored => {
                    return Some(Resolution {
                        module,
                        item: Some(name.clone()),
                    })
                }
                None => return None,
            }
            is_anchored = true;
            rest = after;
        }
        Some(Resolution { module, item: None })
    }

    /// Finds `name` in `module`. A function and a module may have one name: at the end of a path
    /// the function is meant.
    fn look_up(&self, module: usize, name: &str, is_last: bool, depth: u32) -> Option<Resolution> {
        let scope = &self.modules[module];
        let child = scope.children.get(name).map(|child| Resolution {
            module: *child,
            item: None,
        });
        let item = scope.items.contains(name).then(|| Resolution {
            module,
            item: Some(name.to_owned()),
        });
        let own = if is_last {
            item.or(child)
        } else {
            child.or(item)
        };
        own.or_else(|| self.walk(module, scope.imports.get(name)?, depth + 1))
            .or_else(|| {
                scope.globs.iter().find_map(|glob| {
                    let behind = self.walk(module, glob, depth + 1)?;
                    if behind.item.is_some() || behind.module == module {
                        return None;
                    }
                    self.look_up(behind.module, name, is_last, depth + 1)
                })
            })
    }
}

/// Where a path ends: at an item of a module, or at the module itself.
struct Resolution {
    module: usize,
    item: Option<String>,
}

/// Does the attribute say that the item is compiled for tests only?
pub fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let condition = list.tokens.to_string().replace(' ', "");
    list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
}

/// The file that `#[path = "file"]` names.
fn path_of(attributes: &[syn::Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(file),
                    ..
                }) => Some(file.value()),
                _ => None,
            },
            _ => None,
        })
}

fn name_of(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The attributes of an item.
fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn line_of(span: Span) -> usize {
    span.start().line
}

/// Collects the paths that the code of a module names.
struct PathCollector<'a> {
    module: &'a mut Module,
}

impl PathCollector<'_> {
    fn add(&mut self, path: Vec<String>, line: usize) {
        self.module.named.push(NamedPath { path, line });
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| {
            let mut path = before.to_vec();
            path.push(name.to_string());
            path
        };
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before);
                }
            }
            syn::UseTree::Glob(glob) => {
                self.module.globs.push(before.to_vec());
                // Items of a parent's glob are counted where they are named.
                if before.iter().any(|name| name != "super") {
                    self.add(before.to_vec(), line_of(glob.star_token.spans[0]));
                }
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let own = before.last().cloned().unwrap_or_default();
                self.add_import(own, before.to_vec(), &name.ident);
            }
            syn::UseTree::Name(name) => {
                self.add_import(name.ident.to_string(), with(&name.ident), &name.ident);
            }
            syn::UseTree::Rename(name) => {
                self.add_import(name.rename.to_string(), with(&name.ident), &name.ident);
            }
        }
    }

    fn add_import(&mut self, name: String, path: Vec<String>, at: &syn::Ident) {
        self.module.imports.insert(name, path.clone());
        self.add(path, line_of(at.span()));
    }

    /// Paths within the arguments of a macro, or in its definition.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let is_field = at > 0 && is(at - 1, '.');
                    let mut path = vec![first.to_string()];
                    while let (true, true, Some(TokenTree::Ident(next))) =
                        (is(at + 1, ':'), is(at + 2, ':'), tokens.get(at + 3))
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    if !is_field {
                        self.add(path, line_of(first.span()));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for PathCollector<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, &[]);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let segments = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.add(segments, line_of(first.ident.span()));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        self.visit_path(&invoked.path);
        self.add_tokens(invoked.tokens.clone());
    }

    /// `pub(in path)` says who may look, and uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
