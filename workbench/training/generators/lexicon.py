"""Word lists that the text generators of several tasks use."""

from __future__ import annotations

GIRLS = ["Lily", "Mia", "Anna", "Sara", "Emma", "Nora", "Ruby", "Zoe", "Ella", "Rosa", "Kate", "Lucy"]
BOYS = ["Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Tim", "Noah", "Finn", "Oscar", "Paul", "David"]
NAMES = GIRLS + BOYS

ANIMALS = ["dog", "cat", "rabbit", "duck", "frog", "bear", "fox", "horse", "mouse", "owl", "goat", "hen"]
COLORS = ["red", "blue", "green", "yellow", "white", "black", "brown", "pink", "silver", "golden"]
PLACES = ["park", "garden", "forest", "farm", "school", "beach", "village", "market", "river", "hill"]
TOYS = ["ball", "kite", "hat", "boat", "drum", "book", "key", "cup", "box", "coat", "lamp", "ring"]
FOODS = ["apple", "cake", "bread", "soup", "pear", "honey", "cheese", "milk", "plum", "carrot"]
WEATHER = ["sunny", "rainy", "windy", "cold", "warm", "cloudy", "snowy"]
CITIES = ["London", "Paris", "Rome", "Berlin", "Madrid", "Oslo", "Vienna", "Dublin", "Athens", "Lisbon"]
JOBS = ["teacher", "doctor", "farmer", "baker", "driver", "writer", "nurse", "painter", "singer", "pilot"]

# One block per first letter, so that a list of words with different first letters has one clear order.
SORT_WORDS = (
    "apple ant arm bear ball book cat cake coat dog duck door egg ear fox fish frog goat gate garden "
    "hat horse house ice king key lion lamp leaf milk moon mouse nest nut owl orange pear pig queen ring "
    "rain rose sun star ship tree train table van wolf window year"
).split()

SYLLABLES = "ba be bo da de di do fa fi ga go ka ki ko la le li lo ma me mi mo na ne no pa po ra ri ro sa so ta ti to va vi za zo".split()

PLAIN_WORDS = (
    SORT_WORDS
    + ANIMALS
    + COLORS
    + PLACES
    + TOYS
    + FOODS
    + "big small old new happy sad quick slow warm cold good bad long short high low soft loud kind brave "
    "walk run jump sing read write look find give take make hold open close left right under over near far "
    "stone water fire wind snow road bridge hand foot eye nose day night morning evening mother father".split()
)
