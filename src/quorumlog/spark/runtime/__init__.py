"""The Spark session and the Java it runs on.

What is needed to start Spark on one machine; jobs and data sources work in any other session, too.
"""
